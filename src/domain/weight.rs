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
    let mut scale = Scale::default();
    scale.add(text);
    scale.weight
}

/// Weighs a JSON text that comes in pieces.
#[derive(Debug, Clone)]
pub struct Scale {
    /// What has come so far.
    pub weight: Weight,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Default for Scale {
    fn default() -> Self {
        let weight = Weight { parsed_bytes: PART_BYTES, depth: 0 };
        Self { weight, depth: 0, in_text: false, escaped: false }
    }
}

impl Scale {
    /// Adds the next piece.
    pub fn add(&mut self, piece: &[u8]) {
        let weight = &mut self.weight;
        for byte in piece {
            match (self.in_text, byte) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (_, b'"') => self.in_text = !self.in_text,
                (false, b',') => weight.parsed_bytes += PART_BYTES,
                (false, b'[' | b'{') => {
                    self.depth += 1;
                    weight.depth = weight.depth.max(self.depth);
                    weight.parsed_bytes += if *byte == b'{' { OBJECT_BYTES } else { PART_BYTES };
                }
                (false, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        let parsed_bytes = OBJECT_BYTES + 4 * PART_BYTES;
        let text = br#"{"a": "x,[\",{", "b": [1, 2]}"#;
        let weight = Weight { parsed_bytes, depth: 2 };
        assert_eq!(weigh(text), weight);
        for cut in 0..text.len() {
            let mut scale = Scale::default();
            scale.add(&text[..cut]);
            scale.add(&text[cut..]);
            assert_eq!(scale.weight, weight, "cut at {cut}");
        }
    }
}
