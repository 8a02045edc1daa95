//! How much of a call the record keeps: levels by tool, and what counts as secret in its statements.

use globset::{Glob, GlobMatcher};

use crate::event::ArgumentsLevel;

/// What the record keeps of the calls of each tool.
#[derive(Debug, Clone)]
pub struct Recording {
    default: ArgumentsLevel,
    levels: Vec<(GlobMatcher, ArgumentsLevel)>,
    sql_literals: Vec<GlobMatcher>,
    /// A result over this size is recorded as digest and size only, bytes.
    pub(super) result_bytes_max: usize,
}

/// A glob over tool names cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{glob:?}: {cause}")]
pub struct GlobError {
    /// As written.
    pub glob: String,
    /// What is wrong with it.
    pub cause: String,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            default: ArgumentsLevel::Arguments,
            levels: Vec::new(),
            sql_literals: Vec::new(),
            result_bytes_max: 32 * 1024,
        }
    }
}

impl Recording {
    /// `default` for every tool but those that `levels` name by glob; results up to `result_bytes_max` bytes.
    ///
    /// # Errors
    /// [`GlobError`] names the bad glob.
    pub fn new<'a>(
        default: ArgumentsLevel,
        levels: impl IntoIterator<Item = (&'a str, ArgumentsLevel)>,
        result_bytes_max: usize,
    ) -> Result<Self, GlobError> {
        let levels = levels.into_iter().map(|(pattern, level)| Ok((glob(pattern)?, level)));
        let levels = levels.collect::<Result<_, GlobError>>()?;
        Ok(Self { default, levels, sql_literals: Vec::new(), result_bytes_max })
    }

    /// The same, where string literals of SQL are secrets in the statements of the tools that `globs` name.
    ///
    /// # Errors
    /// [`GlobError`] names the bad glob.
    pub fn with_sql_literals<'a>(self, globs: impl IntoIterator<Item = &'a str>) -> Result<Self, GlobError> {
        Ok(Self { sql_literals: globs.into_iter().map(glob).collect::<Result<_, _>>()?, ..self })
    }

    /// The level of `tool`: of those that fit, the one that keeps least.
    pub(super) fn level(&self, tool: &str) -> ArgumentsLevel {
        let fitting = self.levels.iter().filter(|(glob, _)| glob.is_match(tool)).map(|(_, level)| *level);
        fitting.min().unwrap_or(self.default)
    }

    pub(super) fn sql_literals(&self, tool: &str) -> bool {
        self.sql_literals.iter().any(|glob| glob.is_match(tool))
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher, GlobError> {
    let error = |cause: String| GlobError { glob: pattern.to_owned(), cause };
    if pattern.is_empty() {
        return Err(error("an empty glob fits no tool".into()));
    }
    Glob::new(pattern).map(|glob| glob.compile_matcher()).map_err(|cause| error(cause.kind().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_levels_that_fit_the_one_that_keeps_least_holds() {
        use ArgumentsLevel::{Arguments, Full, Metadata, Minimal};
        let levels = [("sql_*", Full), ("*_query", Metadata), ("hr_*", Minimal)];
        let recording = Recording::new(Arguments, levels, 1).unwrap().with_sql_literals(["sql_*"]).unwrap();
        for (tool, level) in
            [("sql_list", Full), ("sql_query", Metadata), ("hr_query", Minimal), ("other", Arguments)]
        {
            assert_eq!(recording.level(tool), level, "{tool}");
        }
        assert_eq!((recording.sql_literals("sql_query"), recording.sql_literals("other")), (true, false));
        let error = Recording::new(Arguments, [("a[", Full)], 1).unwrap_err();
        assert_eq!(error.glob, "a[");
    }
}
