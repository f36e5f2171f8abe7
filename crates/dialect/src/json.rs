//! JSON text.

/// Appends `text` as a JSON string.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => b"\\\"".as_slice(),
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 => b"",
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[from..at]);
        if short.is_empty() {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        } else {
            out.extend_from_slice(short);
        }
        from = at + 1;
    }
    out.extend_from_slice(&text.as_bytes()[from..]);
    out.push(b'"');
}
