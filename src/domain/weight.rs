//! What a JSON text becomes when it is parsed.

/// What a parsed value takes besides its text.
pub const PART_BYTES: usize = 32;
/// What a parsed object takes at least: its tree has room for eleven members from the first on.
pub const OBJECT_BYTES: usize = 704;

/// What a JSON text becomes when it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// Bytes besides its text.
    pub parsed_bytes: usize,
    /// Arrays and objects inside each other.
    pub depth: usize,
}

/// Weighs hostile JSON before it is parsed: a short text of many small values takes much memory.
#[must_use]
pub fn weigh(text: &[u8]) -> Weight {
    let mut weight = Weight { parsed_bytes: PART_BYTES, depth: 0 };
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in text {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b',') => weight.parsed_bytes += PART_BYTES,
            (false, b'[' | b'{') => {
                depth += 1;
                weight.depth = weight.depth.max(depth);
                weight.parsed_bytes += if *byte == b'{' { OBJECT_BYTES } else { PART_BYTES };
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        let parsed_bytes = OBJECT_BYTES + 4 * PART_BYTES;
        let weight = weigh(br#"{"a": "x,[\",{", "b": [1, 2]}"#);
        assert_eq!(weight, Weight { parsed_bytes, depth: 2 });
    }
}
