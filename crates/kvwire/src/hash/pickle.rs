//! The few shapes of Python's pickle (protocol 5, as CPython's C pickler writes it) that vLLM hashes.
//!
//! Pickles refer back to objects already written. The block tuple has one such object, the tag `mm` of
//! several media items; equal ids of two items are different objects and written twice.

/// From this length on a frame is closed before the next object.
const FRAME_TARGET: usize = 64 * 1024;
/// A frame shorter than this has no header.
const FRAME_MIN: usize = 4;
const FRAME_HEADER: usize = 9;

#[derive(Debug)]
pub(crate) struct Pickle {
    out: Vec<u8>,
    frame: Option<usize>,
    memo: u32,
    shared: Option<(&'static str, u32)>,
}

impl Pickle {
    pub(crate) fn new(capacity: usize) -> Self {
        let mut out = Vec::with_capacity(capacity);
        out.extend([0x80, 5]);
        Self { out, frame: None, memo: 0, shared: None }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.op(b".");
        self.close();
        self.out
    }

    fn op(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend([0; FRAME_HEADER]);
        }
        self.out.extend(bytes);
    }

    fn close(&mut self) {
        let Some(start) = self.frame.take() else { return };
        let body = start + FRAME_HEADER;
        let len = self.out.len() - body;
        if len < FRAME_MIN {
            self.out.drain(start..body);
        } else if let Some(header) = self.out.get_mut(start..body) {
            let (op, size) = header.split_at_mut(1);
            op.fill(0x95);
            size.copy_from_slice(&(len as u64).to_le_bytes());
        }
    }

    /// To be called before each object.
    fn boundary(&mut self) {
        if self.frame.is_some_and(|start| self.out.len() - start - FRAME_HEADER >= FRAME_TARGET) {
            self.close();
        }
    }

    fn memoize(&mut self) -> u32 {
        self.op(&[0x94]);
        self.memo += 1;
        self.memo - 1
    }

    pub(crate) fn none(&mut self) {
        self.boundary();
        self.op(b"N");
    }

    pub(crate) fn int(&mut self, value: i64) {
        self.boundary();
        if let Ok(byte) = u8::try_from(value) {
            self.op(&[b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.op(b"M");
            self.op(&short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.op(b"J");
            self.op(&int.to_le_bytes());
        } else {
            // As few bytes as keep the sign.
            let bytes = value.to_le_bytes();
            let len = (5..8u8).find(|&n| value << (64 - 8 * n) >> (64 - 8 * n) == value).unwrap_or(8);
            self.op(&[0x8a, len]);
            self.op(bytes.get(..len.into()).unwrap_or(&bytes));
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.boundary();
        match u8::try_from(bytes.len()) {
            Ok(len) => self.op(&[b'C', len]),
            Err(_) => {
                self.op(b"B");
                self.op(&length(bytes).to_le_bytes());
            }
        }
        self.op(bytes);
        self.memoize();
    }

    pub(crate) fn text(&mut self, text: &str) -> u32 {
        self.boundary();
        match u8::try_from(text.len()) {
            Ok(len) => self.op(&[0x8c, len]),
            Err(_) => {
                self.op(b"X");
                self.op(&length(text.as_bytes()).to_le_bytes());
            }
        }
        self.op(text.as_bytes());
        self.memoize()
    }

    /// A text that is one and the same object wherever it is written.
    pub(crate) fn shared_text(&mut self, text: &'static str) {
        match self.shared {
            Some((known, at)) if known == text => {
                self.boundary();
                match u8::try_from(at) {
                    Ok(at) => self.op(&[b'h', at]),
                    Err(_) => {
                        self.op(b"j");
                        self.op(&at.to_le_bytes());
                    }
                }
            }
            _ => self.shared = Some((text, self.text(text))),
        }
    }

    /// A tuple of `len` elements, which `elements` writes.
    pub(crate) fn tuple(&mut self, len: usize, elements: impl FnOnce(&mut Self)) {
        self.boundary();
        if len == 0 {
            self.op(b")");
            return;
        }
        if len > 3 {
            self.op(b"(");
        }
        elements(self);
        self.op(match len {
            1 => &[0x85],
            2 => &[0x86],
            3 => &[0x87],
            _ => b"t",
        });
        self.memoize();
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
