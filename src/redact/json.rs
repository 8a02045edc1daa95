//! Walks JSON text and replaces what is secret in it. All that stays keeps its bytes, their order and their space.

use serde_json::value::RawValue;

use super::shape::Place;
use super::text::Look;
use super::{DEPTH_MAX, Redactor, Rule, Scope, Secrets, Unreadable, card};

/// How one JSON text is looked at.
pub(super) struct Pass<'a> {
    pub(super) redactor: &'a Redactor,
    pub(super) scope: Scope<'a>,
    /// Whether names in it decide. Those of our own facts do not: they must stay what their schema says.
    pub(super) keys: bool,
    pub(super) nested: usize,
}

impl Pass<'_> {
    /// `json` without secrets.
    pub(super) fn run(&self, json: &str, secrets: &mut Secrets) -> Result<String, Unreadable> {
        // What is walked below is known to be JSON.
        if serde_json::from_str::<&RawValue>(json).is_err() {
            return Err(Unreadable);
        }
        let mut walk = Walk { pass: self, rest: json, out: String::with_capacity(json.len()), secrets };
        walk.space();
        let place = self.scope.shape.map_or_else(Vec::new, super::Shape::root);
        walk.value(0, &place, None, "")?;
        walk.space();
        if walk.rest.is_empty() { Ok(walk.out) } else { Err(Unreadable) }
    }
}

struct Walk<'a> {
    pass: &'a Pass<'a>,
    rest: &'a str,
    out: String,
    secrets: &'a mut Secrets,
}

/// `{"name": "password", "value": "x"}`: what one member says of another.
#[derive(Default)]
struct Named {
    rule: Option<Rule>,
    /// Where the other's value stands in the output, and what it was.
    value: Option<(std::ops::Range<usize>, String)>,
}

/// The columns of a table whose cells are secret.
type Columns = Vec<Option<Rule>>;

impl<'a> Walk<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a str, Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Unreadable)?;
        self.rest = rest;
        Ok(taken)
    }

    fn copy(&mut self, bytes: usize) -> Result<(), Unreadable> {
        let taken = self.take(bytes)?;
        self.out.push_str(taken);
        Ok(())
    }

    fn space(&mut self) {
        let space = self.rest.len() - self.rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
        self.copy(space).unwrap_or(());
    }

    fn next(&self) -> u8 {
        self.rest.as_bytes().first().copied().unwrap_or_default()
    }

    fn value(
        &mut self,
        depth: usize,
        place: &[usize],
        rule: Option<Rule>,
        key: &str,
    ) -> Result<(), Unreadable> {
        if depth > DEPTH_MAX {
            return Err(Unreadable);
        }
        let sensitive = self.pass.scope.shape.is_some_and(|shape| shape.is_sensitive(place));
        let rule = if sensitive { Some(Rule::Borrowed("sensitive")) } else { rule };
        if let Some(rule) = rule {
            return self.secret(&rule, sensitive);
        }
        match self.next() {
            b'{' => self.object(depth, place),
            b'[' => self.array(depth, place, None),
            b'"' => self.string(key),
            _ => self.scalar(),
        }
    }

    /// Replaces the value that comes next as a whole.
    fn secret(&mut self, rule: &Rule, marked: bool) -> Result<(), Unreadable> {
        let raw = self.skip()?;
        let replaced = self.replacement(raw, rule, marked)?;
        self.out.push_str(replaced.as_deref().unwrap_or(raw));
        Ok(())
    }

    /// The marker for `raw`; none for what can be no secret: nothing, a yes or no that only has a telling name, and a
    /// marker.
    fn replacement(&mut self, raw: &str, rule: &Rule, marked: bool) -> Result<Option<String>, Unreadable> {
        let nothing = matches!(raw, "null" | "\"\"" | "{}" | "[]");
        if nothing || (!marked && matches!(raw, "true" | "false")) {
            return Ok(None);
        }
        let marker = if raw.starts_with('"') {
            let text = decoded(raw)?;
            if self.pass.redactor.is_marker(&text) {
                return Ok(None);
            }
            self.secrets.add(rule, &text);
            self.pass.redactor.marker(rule, text.as_bytes())
        } else {
            self.secrets.add(rule, if raw.starts_with(['{', '[']) { "" } else { raw });
            self.leaves(raw, rule);
            self.pass.redactor.marker(rule, raw.as_bytes())
        };
        serde_json::to_string(&marker).map(Some).map_err(|_| Unreadable)
    }

    /// Remembers the texts in a value that is replaced as a whole.
    fn leaves(&mut self, raw: &str, rule: &Rule) {
        let mut rest = raw;
        while let Some(start) = rest.find('"') {
            let Some(tail) = rest.get(start..) else { return };
            let Ok(length) = string_length(tail) else { return };
            let (token, after) = tail.split_at(length);
            if !after.trim_start().starts_with(':')
                && let Ok(text) = serde_json::from_str::<String>(token)
            {
                self.secrets.remember(rule, &text);
            }
            rest = after;
        }
    }

    fn object(&mut self, depth: usize, place: &[usize]) -> Result<(), Unreadable> {
        self.copy(1)?;
        let (mut named, mut columns) = (Named::default(), Columns::new());
        loop {
            self.space();
            match self.next() {
                b'}' => break,
                b',' => {
                    self.copy(1)?;
                    continue;
                }
                _ => {}
            }
            let token = self.take(string_length(self.rest)?)?;
            let key = decoded(token)?;
            self.key(token, &key)?;
            self.space();
            self.copy(1)?;
            self.space();
            self.member(depth, place, &key, &mut named, &mut columns)?;
        }
        self.copy(1)?;
        if let (Some(rule), Some((range, raw))) = (named.rule, named.value)
            && let Some(marker) = self.replacement(&raw, &rule, false)?
        {
            self.out.replace_range(range, &marker);
        }
        Ok(())
    }

    /// A name can be a secret too: a token as the key of a map.
    fn key(&mut self, token: &str, key: &str) -> Result<(), Unreadable> {
        let look = Look { nested: super::NESTED_MAX - 1, ..Look::default() };
        match self.pass.redactor.cleaned(key, self.secrets, &look)? {
            Some(cleaned) if self.pass.keys => {
                self.out.push_str(&serde_json::to_string(&cleaned).map_err(|_| Unreadable)?);
            }
            _ => self.out.push_str(token),
        }
        Ok(())
    }

    fn member(
        &mut self,
        depth: usize,
        place: &[usize],
        key: &str,
        named: &mut Named,
        columns: &mut Columns,
    ) -> Result<(), Unreadable> {
        let below = self.pass.scope.shape.map_or_else(Place::new, |shape| shape.property(place, key));
        if !self.pass.keys {
            return self.value(depth + 1, &below, None, key);
        }
        let names = &self.pass.redactor.names;
        let known = key.to_ascii_lowercase();
        match known.as_str() {
            "name" | "key" | "header" | "field" if self.next() == b'"' => {
                let token = self.rest.get(..string_length(self.rest)?).unwrap_or_default();
                named.rule = serde_json::from_str::<String>(token).ok().and_then(|name| names.rule(&name));
            }
            "columns" if self.next() == b'[' => *columns = self.columns(),
            "rows" if self.next() == b'[' && columns.iter().any(Option::is_some) => {
                return self.rows(depth + 1, columns);
            }
            _ => {}
        }
        let start = self.out.len();
        let before = self.rest;
        self.value(depth + 1, &below, names.rule(key), key)?;
        if matches!(
            known.as_str(),
            "value" | "val" | "values" | "content" | "text" | "string_value" | "stringvalue"
        ) {
            let raw = before.get(..before.len() - self.rest.len()).unwrap_or_default();
            named.value = Some((start..self.out.len(), raw.to_owned()));
        }
        Ok(())
    }

    /// The columns that come next, names or objects that have one. Takes nothing.
    fn columns(&self) -> Columns {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Column {
            Name(String),
            Object { name: String },
        }
        let mut columns = serde_json::Deserializer::from_str(self.rest).into_iter::<Vec<Column>>();
        let Some(Ok(columns)) = columns.next() else { return Columns::new() };
        let rule = |column| {
            let (Column::Name(name) | Column::Object { name }) = column;
            self.pass.redactor.names.rule(&name)
        };
        columns.into_iter().map(rule).collect()
    }

    fn rows(&mut self, depth: usize, columns: &Columns) -> Result<(), Unreadable> {
        self.copy(1)?;
        loop {
            self.space();
            match self.next() {
                b']' => return self.copy(1),
                b',' => self.copy(1)?,
                b'[' => self.array(depth + 1, &[], Some(columns))?,
                _ => self.value(depth + 1, &[], None, "")?,
            }
        }
    }

    fn array(&mut self, depth: usize, place: &[usize], columns: Option<&Columns>) -> Result<(), Unreadable> {
        self.copy(1)?;
        let below = self.pass.scope.shape.map_or_else(Place::new, |shape| shape.item(place));
        let (mut at, mut in_key) = (0, false);
        // `["Authorization", "Bearer x"]`: a pair that is written as two items.
        let mut pair: Option<Rule> = None;
        // `["mysql", "--password", "x"]`: the word behind an option of a command.
        let mut option: Option<Rule> = None;
        loop {
            self.space();
            match self.next() {
                b']' => return self.copy(1),
                b',' => {
                    self.copy(1)?;
                    continue;
                }
                _ => {}
            }
            let item = self.peek()?;
            let ends = in_key && item.contains("-----END ");
            let rule = columns
                .and_then(|columns| columns.get(at).cloned().flatten())
                .or_else(|| in_key.then_some(Rule::Borrowed("private_key")))
                .or_else(|| if at == 1 { pair.take() } else { None })
                .or_else(|| option.take().filter(|_| !item.starts_with("\"-")));
            option = self.option(item);
            if at == 0 && self.pass.keys && columns.is_none() && item.starts_with('"') {
                let name = serde_json::from_str::<String>(item).ok();
                pair =
                    name.and_then(|name| self.pass.redactor.names.rule(&name)).filter(|_| self.has_two(item));
            }
            in_key = (in_key && !ends) || begins_private_key(item);
            self.value(depth + 1, &below, rule, "")?;
            at += 1;
        }
    }

    /// What the option `item` names, when it is one that takes its value from the next word.
    fn option(&self, item: &str) -> Option<Rule> {
        let name = item.strip_prefix("\"--").and_then(|name| name.strip_suffix('"'))?;
        if self.pass.keys && !name.contains('=') { self.pass.redactor.names.rule(name) } else { None }
    }

    /// The token or value that comes next, not taken. Only strings and scalars are given whole.
    fn peek(&self) -> Result<&'a str, Unreadable> {
        match self.next() {
            b'"' => self.rest.get(..string_length(self.rest)?).ok_or(Unreadable),
            _ => Ok(""),
        }
    }

    /// Whether the array that `first` opens has exactly one more item, a string.
    fn has_two(&self, first: &str) -> bool {
        let second =
            self.rest.get(first.len()..).map(str::trim_start).and_then(|rest| rest.strip_prefix(','));
        let Some(second) = second.map(str::trim_start) else { return false };
        let Ok(length) = string_length(second) else { return false };
        second.get(length..).is_some_and(|rest| rest.trim_start().starts_with(']'))
    }

    fn string(&mut self, key: &str) -> Result<(), Unreadable> {
        let token = self.take(string_length(self.rest)?)?;
        let text = decoded(token)?;
        let sql_literals = self.pass.scope.sql_literals;
        let sql = sql_literals && is_statement(key);
        let look = Look { nested: self.pass.nested, sql, sql_literals };
        match self.pass.redactor.cleaned(&text, self.secrets, &look)? {
            Some(cleaned) => self.out.push_str(&serde_json::to_string(&cleaned).map_err(|_| Unreadable)?),
            None => self.out.push_str(token),
        }
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), Unreadable> {
        let raw = self.skip()?;
        if self.pass.keys && !card::find(raw).is_empty() {
            let rule = Rule::Borrowed("card");
            self.secrets.add(&rule, raw);
            let marker = self.pass.redactor.marker(&rule, raw.as_bytes());
            self.out.push_str(&serde_json::to_string(&marker).map_err(|_| Unreadable)?);
        } else {
            self.out.push_str(raw);
        }
        Ok(())
    }

    /// Takes the value that comes next, unseen.
    fn skip(&mut self) -> Result<&'a str, Unreadable> {
        let (bytes, mut at, mut open) = (self.rest.as_bytes(), 0, 0_usize);
        loop {
            match bytes.get(at) {
                Some(b'"') => at += string_length(self.rest.get(at..).ok_or(Unreadable)?)?,
                Some(b'{' | b'[') => {
                    open += 1;
                    at += 1;
                }
                Some(b'}' | b']') if open > 0 => {
                    open -= 1;
                    at += 1;
                }
                Some(b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r') | None if open == 0 => {
                    return if at == 0 { Err(Unreadable) } else { self.take(at) };
                }
                Some(_) => {
                    at += 1;
                    continue;
                }
                None => return Err(Unreadable),
            }
            if open == 0 {
                return self.take(at);
            }
        }
    }
}

fn begins_private_key(item: &str) -> bool {
    item.contains("-----BEGIN ") && item.contains("PRIVATE KEY") && !item.contains("-----END ")
}

/// Whether an argument of this name holds a SQL statement.
fn is_statement(key: &str) -> bool {
    ["sql", "query", "statement"].iter().any(|name| key.eq_ignore_ascii_case(name))
}

/// The text of a string token. A lone surrogate, which no text can hold, becomes a mark that no rule fits.
fn decoded(token: &str) -> Result<String, Unreadable> {
    serde_json::from_str(token).or_else(|_| {
        let mut whole = String::with_capacity(token.len());
        let mut rest = token;
        while let Some(at) = rest.find('\\') {
            let (before, tail) = rest.split_at(at);
            whole.push_str(before);
            let pair =
                tail.get(..12).filter(|pair| serde_json::from_str::<String>(&format!("\"{pair}\"")).is_ok());
            let escape = if tail.starts_with("\\u") { pair.or(tail.get(..6)) } else { tail.get(..2) };
            let escape = escape.ok_or(Unreadable)?;
            let good = serde_json::from_str::<String>(&format!("\"{escape}\"")).is_ok();
            whole.push_str(if good { escape } else { "\u{fffd}" });
            rest = tail.get(escape.len()..).ok_or(Unreadable)?;
        }
        whole.push_str(rest);
        serde_json::from_str(&whole).map_err(|_| Unreadable)
    })
}

/// The length of the JSON string token that `text` begins with.
fn string_length(text: &str) -> Result<usize, Unreadable> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'"') {
        return Err(Unreadable);
    }
    let mut at = 1;
    loop {
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            Some(b'"') => return Ok(at + 1),
            Some(_) => at += 1,
            None => return Err(Unreadable),
        }
    }
}
