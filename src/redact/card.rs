//! Payment card numbers: 13 to 19 digits with a network's prefix and length, and the check digit of Luhn.

use std::ops::Range;

/// Where card numbers stand in `text`: digits alone, or in groups as they are printed.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if !byte.is_ascii_digit() {
            at += 1;
            continue;
        }
        let run = run(bytes, at);
        // Part of a longer word, a decimal or an id with dashes is no card.
        let before = at.checked_sub(1).and_then(|i| bytes.get(i));
        let joined = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let beside = before.is_some_and(|b| *b == b'-' || *b == b'.')
            && at.checked_sub(2).and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_alphanumeric);
        let after = bytes.get(run.end);
        let goes_on = after.is_some_and(|b| *b == b'-' || *b == b'.')
            && bytes.get(run.end + 1).is_some_and(u8::is_ascii_alphanumeric);
        if !joined(before) && !joined(after) && !beside && !goes_on && is_card(&bytes[run.clone()]) {
            found.push(run.clone());
        }
        at = run.end.max(at + 1);
    }
    found
}

/// Digits from `at`, with single spaces or dashes between them.
fn run(bytes: &[u8], at: usize) -> Range<usize> {
    let mut end = at;
    loop {
        while bytes.get(end).is_some_and(u8::is_ascii_digit) {
            end += 1;
        }
        let separated = bytes.get(end).is_some_and(|b| matches!(b, b' ' | b'-'));
        if separated && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            end += 1;
        } else {
            return at..end;
        }
    }
}

fn is_card(run: &[u8]) -> bool {
    let digits: Vec<u8> = run.iter().filter(|b| b.is_ascii_digit()).map(|b| b - b'0').collect();
    let groups: Vec<usize> = run.split(|b| !b.is_ascii_digit()).map(<[u8]>::len).collect();
    grouped_as_printed(&groups) && (13..=19).contains(&digits.len()) && of_a_network(&digits) && luhn(&digits)
}

fn grouped_as_printed(groups: &[usize]) -> bool {
    matches!(groups, [_] | [4, 4, 4, 1..=4] | [4, 6, 4 | 5] | [4, 4, 4, 4, 1..=3] | [6, 7..=13])
}

fn of_a_network(digits: &[u8]) -> bool {
    let prefix = |length: usize| {
        digits.iter().take(length).fold(0_u32, |number, digit| number * 10 + u32::from(*digit))
    };
    match digits.len() {
        13 => prefix(1) == 4,
        14 => matches!(prefix(3), 300..=305) || matches!(prefix(2), 36 | 38 | 39),
        15 => matches!(prefix(2), 34 | 37),
        16 => {
            prefix(1) == 4
                || matches!(prefix(2), 51..=55 | 62 | 65)
                || matches!(prefix(3), 644..=649)
                || matches!(prefix(4), 2221..=2720 | 3528..=3589 | 6011 | 5018 | 5020 | 5038 | 6304 | 6759 | 6761..=6763)
        }
        17 | 18 => matches!(prefix(2), 62 | 65) || matches!(prefix(4), 6011 | 6759 | 6761..=6763),
        19 => {
            prefix(1) == 4 || matches!(prefix(2), 62 | 65) || matches!(prefix(4), 6011 | 6759 | 6761..=6763)
        }
        _ => false,
    }
}

fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| {
            let digit = u32::from(*digit);
            if at % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 }
        })
        .sum();
    sum.is_multiple_of(10) && digits.iter().any(|digit| *digit != digits[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_networks_are_found_in_every_form() {
        for text in [
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "5555555555554444",
            "2223003122003222",
            "378282246310005",
            "3782 822463 10005",
            "30569309025904",
            "6011111111111117",
            "3530111333300000",
            "4222222222222",
            "card 4111111111111111.",
            "(4111111111111111)",
            "6200000000000005",
        ] {
            assert_eq!(find(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn other_numbers_stay() {
        for text in [
            "4111111111111112",
            "1764521228000042",
            "0000000000000000",
            "12345678901234567890",
            "a4111111111111111",
            "41111111-1111-1111-4111-111111111111",
            "0.4111111111111111",
            "+49 30 901820",
            "2026-11-30 10:20:30",
            "4111111111111111a",
            "411111 1111111111 1",
            "9007199254740993",
        ] {
            assert!(find(text).is_empty(), "{text}");
        }
    }
}
