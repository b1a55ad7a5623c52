//! The tokenizers of `tests/golden/text/json`, with the character maps that stand there by their names.

use super::root;
use serde_json::Value;

/// The file of one kind; `map` stands for its character map if it is given.
pub fn of_kind(name: &str, map: Option<&str>) -> Value {
    let text = std::fs::read_to_string(root().join(format!("tests/golden/text/json/{name}.json"))).unwrap();
    let mut file = serde_json::from_str(&text).unwrap();
    put_maps(&mut file, map);
    file
}

/// `bytes` in base64.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        let digits = (0..4).map(|place| DIGITS[(bits >> (18 - 6 * place)) as usize % 64] as char);
        text.extend(digits.take(group.len() + 1));
        text.push_str(&"=="[..3 - group.len()]);
    }
    text
}

/// Puts character maps in the places of their names, or `map` in the places of all.
fn put_maps(value: &mut Value, map: Option<&str>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(name)) = fields.get_mut("precompiled_charsmap") {
                let path = root().join(format!("tests/golden/text/{}.charsmap", map.unwrap_or(name)));
                *name = base64(&std::fs::read(path).unwrap());
            }
            fields.values_mut().for_each(|value| put_maps(value, map));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| put_maps(value, map)),
        _ => {}
    }
}
