//! Text without what changes by itself: numbers, times, dates, versions, ids.
//!
//! - I-MSK-1 a run of letters, digits and `-._:+` that has a digit in it is one mark, whatever it says, and names
//!   of months and days beside it (two before, one behind) go with it. All else stays as it is.
//! - Two texts of one masked form *may* differ in more than volatile text (an edit that changes only a number): the
//!   masked form is used to name a cause, never to find a common prefix.

/// Stands for a run; no UTF-8 text has this byte.
const MARK: u8 = 0xff;

const NAMES: &[&[u8]] = &[
    b"january",
    b"february",
    b"march",
    b"april",
    b"may",
    b"june",
    b"july",
    b"august",
    b"september",
    b"october",
    b"november",
    b"december",
    b"jan",
    b"feb",
    b"mar",
    b"apr",
    b"jun",
    b"jul",
    b"aug",
    b"sep",
    b"sept",
    b"oct",
    b"nov",
    b"dec",
    b"monday",
    b"tuesday",
    b"wednesday",
    b"thursday",
    b"friday",
    b"saturday",
    b"sunday",
    b"mon",
    b"tue",
    b"wed",
    b"thu",
    b"fri",
    b"sat",
    b"sun",
];

/// Names beside a run that go with it, before it and behind it.
const NAMES_BEFORE: usize = 2;
const NAMES_BEHIND: usize = 1;

/// Puts the masked form into `out`; `false` = nothing was masked and `out` is of no meaning.
pub(crate) fn mask(text: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut copied = 0;
    let mut any = false;
    while let Some(digit) = next_digit(text, copied) {
        let mut start = digit;
        while start > copied && text.get(start - 1).is_some_and(|byte| in_run(*byte)) {
            start -= 1;
        }
        let mut end = digit + 1;
        while text.get(end).is_some_and(|byte| in_run(*byte)) {
            end += 1;
        }
        for _ in 0..NAMES_BEFORE {
            start = name_before(text, copied, start).unwrap_or(start);
        }
        for _ in 0..NAMES_BEHIND {
            end = name_behind(text, end).unwrap_or(end);
        }
        out.extend_from_slice(text.get(copied..start).unwrap_or_default());
        out.push(MARK);
        copied = end;
        any = true;
    }
    if any {
        out.extend_from_slice(text.get(copied..).unwrap_or_default());
    }
    any
}

const fn in_run(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'+')
}

/// Where a name of a month or day starts that ends before `at`, but for a blank or a comma and a blank.
fn name_before(text: &[u8], from: usize, at: usize) -> Option<usize> {
    let before = text.get(from..at)?;
    let before = before.strip_suffix(b" ")?;
    let before = before.strip_suffix(b",").unwrap_or(before);
    let letters = before.iter().rev().take(10).take_while(|byte| byte.is_ascii_alphabetic()).count();
    let start = before.len() - letters;
    is_name(before.get(start..)?).then_some(from + start)
}

fn name_behind(text: &[u8], at: usize) -> Option<usize> {
    let behind = text.get(at..)?.strip_prefix(b" ")?;
    let letters = behind.iter().take(10).take_while(|byte| byte.is_ascii_alphabetic()).count();
    is_name(behind.get(..letters)?).then_some(at + 1 + letters)
}

fn is_name(word: &[u8]) -> bool {
    let starts = word.first().is_some_and(|first| b"adfjmnostw".contains(&first.to_ascii_lowercase()));
    starts && (3..=9).contains(&word.len()) && NAMES.iter().any(|name| name.eq_ignore_ascii_case(word))
}

/// The next ASCII digit, eight bytes at a time.
fn next_digit(text: &[u8], from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let (words, _) = rest.as_chunks::<8>();
    let mut at = 0;
    for word in words {
        let digits = digits(u64::from_le_bytes(*word));
        if digits != 0 {
            return Some(from + at + (digits.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    let tail = rest.get(at..)?.iter().position(u8::is_ascii_digit)?;
    Some(from + at + tail)
}

/// The high bit of each byte that is an ASCII digit.
const fn digits(word: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let from_zero = word ^ 0x3030_3030_3030_3030;
    !(((from_zero & LOW) + 0x7676_7676_7676_7676) | from_zero) & !LOW
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str) -> String {
        let mut out = Vec::new();
        if !mask(text.as_bytes(), &mut out) {
            return text.to_owned();
        }
        out.iter().map(|byte| if *byte == MARK { '#' } else { char::from(*byte) }).collect()
    }

    /// I-MSK-1.
    #[test]
    fn what_changes_by_itself_is_masked_and_nothing_else() {
        for (text, expected) in [
            ("no digits here, on Monday", "no digits here, on Monday"),
            ("cc_version=2.1.332.abc; x", "cc_version=#; x"),
            ("at 2026-11-30T05:20:00.123456+00:00.", "at #"),
            ("id 3f2b8a1c-0000-4aaa-8bbb-cccccccccccc ok", "id # ok"),
            ("Today is Monday, November 30, 2026", "Today is #, #"),
            ("on 30 November only", "on # only"),
            ("you may have 5 left", "you may have # left"),
            ("12", "#"),
            ("a/1/b", "a/#/b"),
        ] {
            assert_eq!(masked(text), expected, "{text}");
        }
    }

    #[test]
    fn digits_are_found_wherever_they_stand() {
        for length in 0..40 {
            for at in 0..length {
                for digit in *b"059" {
                    let mut text = vec![b'/'; length];
                    text[at] = digit;
                    assert_eq!(next_digit(&text, 0), Some(at), "{at} of {length}");
                    assert_eq!(next_digit(&text, at + 1), None);
                }
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        let found: Vec<usize> = (0..256).filter(|at| next_digit(&all[*at..=*at], 0).is_some()).collect();
        assert_eq!(found, (48..58).collect::<Vec<_>>());
        for start in 0..256 {
            let word: Vec<u8> = (0..8).map(|i| (start + i * 37) as u8).collect();
            let expected = word.iter().position(u8::is_ascii_digit);
            assert_eq!(next_digit(&word, 0), expected, "{word:?}");
        }
    }
}
