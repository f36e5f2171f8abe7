//! Canonical CBOR of the shapes that vLLM hashes: shortest heads, definite lengths.

#[derive(Debug)]
pub(crate) struct Cbor(pub(crate) Vec<u8>);

impl Cbor {
    fn head(&mut self, major: u8, value: u64) {
        let major = major << 5;
        if let Ok(byte) = u8::try_from(value) {
            if byte < 24 {
                self.0.push(major | byte);
            } else {
                self.0.extend([major | 24, byte]);
            }
        } else if let Ok(short) = u16::try_from(value) {
            self.0.push(major | 25);
            self.0.extend(short.to_be_bytes());
        } else if let Ok(int) = u32::try_from(value) {
            self.0.push(major | 26);
            self.0.extend(int.to_be_bytes());
        } else {
            self.0.push(major | 27);
            self.0.extend(value.to_be_bytes());
        }
    }

    pub(crate) fn none(&mut self) {
        self.0.push(0xf6);
    }

    pub(crate) fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.head(0, value),
            // Of a negative number n, -1 - n is written.
            Err(_) => self.head(1, !value.cast_unsigned()),
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.head(2, bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.head(3, text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// The head of an array, whose elements are written next.
    pub(crate) fn array(&mut self, len: usize) {
        self.head(4, len as u64);
    }
}
