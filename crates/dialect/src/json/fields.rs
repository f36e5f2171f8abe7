//! Lenient readers of single fields.

use std::borrow::Cow;

use super::{Kind, Scan, Scanner};

/// Lenient readers of single fields: a value of another type is read over and gives `None`.
impl<'a> Scanner<'a> {
    /// A text.
    pub(crate) fn text_or_skip(&mut self) -> Scan<Option<Cow<'a, [u8]>>> {
        if self.peek()? == Kind::Text { self.text().map(Some) } else { self.skip().map(|()| None) }
    }

    /// A text of valid UTF-8.
    pub(crate) fn string(&mut self) -> Scan<Option<String>> {
        Ok(self.text_or_skip()?.and_then(|text| String::from_utf8(text.into_owned()).ok()))
    }

    /// A whole number that is not negative; `16.0` and `"16"` count, as they do for the engines' validators.
    pub(crate) fn unsigned(&mut self) -> Scan<Option<u64>> {
        match self.peek()? {
            Kind::Number => self.number().map(parse_unsigned),
            Kind::Text => self.text().map(|text| parse_unsigned(text.trim_ascii())),
            _ => self.skip().map(|()| None),
        }
    }

    /// A truth value as the engines' validators (pydantic) read it: also 0, 1 and words such as "yes".
    pub(crate) fn truth(&mut self) -> Scan<Option<bool>> {
        match self.peek()? {
            Kind::Bool | Kind::Null => self.word(),
            Kind::Number => Ok(match parse_f64(self.number()?) {
                0.0 => Some(false),
                1.0 => Some(true),
                _ => None,
            }),
            Kind::Text => Ok(match &*self.text()?.to_ascii_lowercase() {
                b"0" | b"off" | b"f" | b"false" | b"n" | b"no" => Some(false),
                b"1" | b"on" | b"t" | b"true" | b"y" | b"yes" => Some(true),
                _ => None,
            }),
            _ => self.skip().map(|()| None),
        }
    }

    /// The text at `path` inside objects.
    pub(crate) fn text_at(&mut self, path: &[&[u8]]) -> Scan<Option<Cow<'a, [u8]>>> {
        let [name, rest @ ..] = path else { return self.text_or_skip() };
        let mut found = None;
        self.members(|scan, key| {
            if key != *name {
                return scan.skip();
            }
            found = scan.text_at(rest)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// The members of an object; any other value is read over.
    pub(crate) fn members(&mut self, member: impl FnMut(&mut Self, &[u8]) -> Scan) -> Scan {
        if self.peek()? == Kind::Object { self.object(member) } else { self.skip() }
    }

    /// The items of an array; any other value is read over.
    pub(crate) fn items(&mut self, item: impl FnMut(&mut Self, usize) -> Scan) -> Scan {
        if self.peek()? == Kind::Array { self.array(item) } else { self.skip() }
    }

    /// A list of token ids, at most `max`; `None` when it is anything else.
    pub(crate) fn token_ids(&mut self, max: usize) -> Scan<Option<Vec<u32>>> {
        if self.peek()? != Kind::Array {
            return self.skip().map(|()| None);
        }
        let mut tokens = Some(Vec::new());
        self.array(|scan, _| scan.token_id(&mut tokens, max))?;
        Ok(tokens)
    }

    /// One item of a list of token ids; spoils the list when it is none.
    pub(crate) fn token_id(&mut self, tokens: &mut Option<Vec<u32>>, max: usize) -> Scan {
        let token = match self.peek()? {
            Kind::Number => self.number().map(parse_unsigned)?,
            _ => self.skip().map(|()| None)?,
        };
        match (tokens.as_mut(), token.and_then(|token| u32::try_from(token).ok())) {
            (Some(list), Some(token)) if list.len() < max => list.push(token),
            _ => *tokens = None,
        }
        Ok(())
    }
}

pub(super) fn parse_f64(literal: &[u8]) -> f64 {
    std::str::from_utf8(literal).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

/// A whole number that is not negative, also in the form `16.0`.
fn parse_unsigned(literal: &[u8]) -> Option<u64> {
    let whole = literal.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (whole, rest) = literal.split_at(whole);
    let zeros = match rest {
        [] => true,
        [b'.', zeros @ ..] => !zeros.is_empty() && zeros.iter().all(|byte| *byte == b'0'),
        _ => false,
    };
    if whole.is_empty() || !zeros {
        return None;
    }
    whole.iter().try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}
