//! Digits of numbers.

/// Returns true if each underscore is between digits, or after a radix prefix.
pub(crate) fn underscores_are_valid(digits: &str) -> bool {
    let bytes = digits.as_bytes();
    let has_prefix =
        bytes.len() > 1 && bytes[0] == b'0' && matches!(bytes[1] | 0x20, b'x' | b'o' | b'b');
    bytes.iter().enumerate().all(|(index, byte)| {
        let follows_digit = index > 0 && has_digit_at(bytes, index - 1) || has_prefix && index == 2;
        *byte != b'_' || follows_digit && has_digit_at(bytes, index + 1)
    })
}

fn has_digit_at(bytes: &[u8], index: usize) -> bool {
    bytes.get(index).is_some_and(u8::is_ascii_hexdigit)
}
