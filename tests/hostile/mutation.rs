//! Changes that make a valid file hostile. One half changes what a file holds, and writes it well; the other lets it lie.

use super::damage::damage;
use super::dice::Dice;
use super::gguf::{Entry, File, TEXT, Tensor, Value};
use super::keys::{ARCHS, EXPERT_SIZES, HEAD_KEYS, KEYS, LAYER_SIZES, OTHERS, SIZES, STATE_SIZES};
use super::models::{ASSISTANT, HEAD};
use segno::quant::DType;

type Change = fn(&mut File, &mut Dice);

const CHANGES: [Change; 29] = [
    lie_about_counts,
    change_version_or_magic,
    drop_entry,
    double_entry,
    rename_entry,
    retype_entry,
    set_known_key,
    set_known_key,
    set_known_key,
    change_scalar,
    change_scalar,
    change_text,
    change_array,
    change_array,
    change_item,
    change_item,
    change_item,
    nest_arrays,
    drop_tensor,
    double_tensor,
    rename_tensor,
    reshape_tensor,
    resize_tensor,
    retype_tensor,
    move_tensor,
    spoil_data,
    spoil_data,
    spoil_data,
    resize_tensor,
];

/// Texts that mean something somewhere in a header, or that no parser likes.
const TEXTS: [&[u8]; 29] = [
    b"",
    b"model",
    b"adapter",
    b" ",
    b"\0",
    b"\xff\xfe",
    b"\xc3",
    b"llama",
    b"qwen2",
    b"qwen3",
    b"gpt2",
    b"gemma4",
    b"no_vocab",
    b"llama-bpe",
    b"deepseek-v3",
    b"linear",
    b"yarn",
    b"none",
    b"\xe2\x96\x81",
    b"<unk>",
    b"<0x41>",
    b"<0xZZ>",
    b"</s>",
    b"t h",
    b"no merge",
    b"a b c",
    b"{{ messages[0].content * 999999999 }}",
    b"{% for i in range(1000000000) %}x{% endfor %}",
    b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
];

/// Makes 1 to 4 changes, and returns the bytes, which may themselves be damaged.
pub fn mutate(file: &File, dice: &mut Dice) -> Vec<u8> {
    let mut file = file.clone();
    let damaged = dice.one_in(6);
    let changes = if damaged { dice.below(2) } else { 1 + dice.below(2) * dice.below(4) };
    for _ in 0..changes {
        dice.pick(&CHANGES)(&mut file, dice);
    }
    let mut bytes = file.to_bytes();
    if damaged {
        damage(&mut bytes, 2048, dice);
    }
    bytes
}

fn entry<'a>(file: &'a mut File, dice: &mut Dice) -> Option<&'a mut Entry> {
    let count = file.entries.len();
    (count > 0).then(|| &mut file.entries[dice.below(count)])
}

fn tensor<'a>(file: &'a mut File, dice: &mut Dice) -> Option<&'a mut Tensor> {
    let count = file.tensors.len();
    (count > 0).then(|| &mut file.tensors[dice.below(count)])
}

/// Items of a random array, those of tokens, scores, kinds and merges most of the time.
fn array<'a>(file: &'a mut File, dice: &mut Dice) -> Option<(&'a mut u32, &'a mut Vec<Value>, &'a mut Option<u64>)> {
    let mut arrays: Vec<_> =
        file.entries.iter_mut().filter(|entry| matches!(entry.value, Value::Array { .. })).collect();
    if arrays.is_empty() {
        return None;
    }
    let chosen = dice.below(arrays.len());
    match &mut arrays.swap_remove(chosen).value {
        Value::Array { type_id, items, said } => Some((type_id, items, said)),
        _ => None,
    }
}

/// A value of any type; one in a few is an array.
fn any_value(dice: &mut Dice) -> Value {
    match dice.below(10) {
        0..=2 => Value::u32(dice.number() as u32),
        3 => Value::f32(dice.float()),
        4 => Value::bool(dice.one_in(2)),
        5 => Value::Scalar { type_id: 10 + dice.below(2) as u32, bytes: dice.number().to_le_bytes().to_vec() },
        6 => Value::i32(dice.number() as i32),
        7 => Value::text(dice.pick(&TEXTS)),
        8 => {
            let count = dice.below(100);
            Value::array(TEXT, (0..count).map(|_| Value::text(dice.pick(&TEXTS))))
        }
        _ => {
            let count = dice.below(100);
            Value::array(5, (0..count).map(|_| Value::i32(dice.number() as i32)))
        }
    }
}

fn lie_about_counts(file: &mut File, dice: &mut Dice) {
    let (entries, tensors) = (file.entries.len() as u64, file.tensors.len() as u64);
    let lie = |dice: &mut Dice, truth: u64| match dice.below(3) {
        0 => truth.wrapping_sub(1),
        1 => truth + 1,
        _ => dice.number(),
    };
    match dice.one_in(2) {
        true => file.said_entries = Some(lie(dice, entries)),
        false => file.said_tensors = Some(lie(dice, tensors)),
    }
}

fn change_version_or_magic(file: &mut File, dice: &mut Dice) {
    match dice.below(8) {
        0 => file.magic[dice.below(4)] = dice.byte(),
        1 => file.version = dice.number() as u32,
        // Rightly written in another version.
        _ => file.version = 1 + dice.below(3) as u32,
    }
}

fn drop_entry(file: &mut File, dice: &mut Dice) {
    if !file.entries.is_empty() {
        let at = dice.below(file.entries.len());
        file.entries.remove(at);
    }
}

fn double_entry(file: &mut File, dice: &mut Dice) {
    if let Some(copy) = entry(file, dice).cloned() {
        file.entries.push(copy);
    }
}

fn rename_entry(file: &mut File, dice: &mut Dice) {
    let text = dice.pick(&TEXTS);
    let Some(entry) = entry(file, dice) else { return };
    match dice.below(3) {
        0 => entry.key = text.to_vec(),
        1 => entry.key = dice.pick(&KEYS).into(),
        _ if !entry.key.is_empty() => {
            let at = dice.below(entry.key.len());
            entry.key[at] = dice.byte();
        }
        _ => {}
    }
}

/// The bytes of a value stand for another type.
fn retype_entry(file: &mut File, dice: &mut Dice) {
    let version = file.version;
    let Some(entry) = entry(file, dice) else { return };
    let bytes = match &entry.value {
        Value::Scalar { bytes, .. } => bytes.clone(),
        Value::Text { bytes, .. } if version == 1 => [&(bytes.len() as u32).to_le_bytes(), &bytes[..]].concat(),
        Value::Text { bytes, .. } => [&(bytes.len() as u64).to_le_bytes(), &bytes[..]].concat(),
        Value::Array { .. } => return,
    };
    let type_id = if dice.one_in(4) { dice.number() as u32 } else { dice.below(14) as u32 };
    entry.value = Value::Scalar { type_id, bytes };
}

/// A key that the library knows gets a value of any type at an edge.
fn set_known_key(file: &mut File, dice: &mut Dice) {
    let arch = dice.pick(&["llama", "qwen2", "qwen3"]);
    let said = file.entries.iter().find(|entry| entry.key == b"general.architecture").map(|entry| &entry.value);
    let arch = match said {
        Some(Value::Text { bytes, .. }) => ARCHS.into_iter().find(|arch| arch.as_bytes() == bytes).unwrap_or(arch),
        _ => arch,
    };
    let (key, value) = match dice.below(6) {
        0 => (format!("{arch}.{}", dice.pick(&SIZES)), Value::u32(dice.number() as u32)),
        1 => (format!("{arch}.{}", dice.pick(&SIZES)), any_value(dice)),
        2 => (format!("{arch}.{}", dice.pick(&OTHERS)), any_value(dice)),
        3 if arch == ASSISTANT && dice.one_in(4) => {
            (format!("{arch}.embedding_length_out"), Value::u32(dice.number() as u32))
        }
        3 if arch == HEAD && dice.one_in(2) => {
            let key = format!("{arch}.{}", dice.pick(&HEAD_KEYS));
            (key, if dice.one_in(2) { Value::u32(dice.below(40) as u32) } else { any_value(dice) })
        }
        3 if arch.starts_with("gemma4") && dice.one_in(2) => {
            (format!("{arch}.{}", dice.pick(&LAYER_SIZES)), Value::u32(dice.below(20) as u32))
        }
        3 => (format!("{arch}.{}", dice.pick(&EXPERT_SIZES)), Value::u32(dice.below(9) as u32)),
        4 if dice.one_in(2) => (format!("{arch}.{}", dice.pick(&STATE_SIZES)), Value::u32(dice.below(20) as u32)),
        4 => (format!("{arch}.{}", dice.pick(&STATE_SIZES)), any_value(dice)),
        _ => (dice.pick(&KEYS).to_owned(), any_value(dice)),
    };
    file.entries.retain(|entry| entry.key != key.as_bytes());
    file.set(&key, value);
}

fn change_scalar(file: &mut File, dice: &mut Dice) {
    let (number, float) = (dice.number(), dice.float());
    let mut scalars: Vec<_> = file.entries.iter_mut().filter(|e| matches!(e.value, Value::Scalar { .. })).collect();
    if scalars.is_empty() {
        return;
    }
    let chosen = dice.below(scalars.len());
    let Value::Scalar { type_id, bytes } = &mut scalars[chosen].value else { return };
    match type_id {
        6 => *bytes = float.to_le_bytes().to_vec(),
        _ => bytes.iter_mut().zip(number.to_le_bytes()).for_each(|(byte, new)| *byte = new),
    }
}

fn change_text(file: &mut File, dice: &mut Dice) {
    let mut texts: Vec<_> = file.entries.iter_mut().filter(|e| matches!(e.value, Value::Text { .. })).collect();
    if texts.is_empty() {
        return;
    }
    let chosen = dice.below(texts.len());
    let Value::Text { bytes, said } = &mut texts[chosen].value else { return };
    change_bytes(bytes, said, dice);
}

fn change_bytes(bytes: &mut Vec<u8>, said: &mut Option<u64>, dice: &mut Dice) {
    match dice.below(6) {
        0 => *said = Some(dice.number()),
        1 => *said = Some((bytes.len() as u64).wrapping_add_signed(dice.below(9) as i64 - 4)),
        2 => *bytes = dice.pick(&TEXTS).to_vec(),
        3 => {
            let count = dice.below(70_000);
            *bytes = vec![dice.byte(); count];
        }
        4 => {
            let count = dice.below(40);
            *bytes = dice.bytes(count);
        }
        _ => bytes.extend(dice.pick(&TEXTS)),
    }
}

fn change_array(file: &mut File, dice: &mut Dice) {
    let Some((type_id, items, said)) = array(file, dice) else { return };
    let len = items.len();
    match dice.below(8) {
        0 => *said = Some(dice.number()),
        1 => *said = Some((len as u64).wrapping_add_signed(dice.below(9) as i64 - 4)),
        2 => *type_id = dice.below(14) as u32,
        3 => items.clear(),
        4 => items.truncate(dice.below(len + 1)),
        5 if len > 0 => drop(items.remove(dice.below(len))),
        6 if len > 0 => {
            let item = items[dice.below(len)].clone();
            let at = dice.below(len + 1);
            items.insert(at, item);
        }
        7 if len > 0 => {
            let item = items[dice.below(len)].clone();
            let large = matches!(&item, Value::Text { bytes, .. } if bytes.len() > 64);
            let count = dice.below(if large { 8 } else { 5000 });
            items.extend(std::iter::repeat_n(item, count));
        }
        _ => {}
    }
}

/// One to eight items of an array: holes, doubles, names of bytes, numbers at the edges.
fn change_item(file: &mut File, dice: &mut Dice) {
    let Some((_, items, _)) = array(file, dice) else { return };
    for _ in 0..1 + dice.below(8) {
        if items.is_empty() {
            return;
        }
        let at = dice.below(items.len());
        if dice.one_in(4) {
            items[at] = items[dice.below(items.len())].clone();
            continue;
        }
        match &mut items[at] {
            Value::Scalar { type_id: 6, bytes } => *bytes = dice.float().to_le_bytes().to_vec(),
            Value::Scalar { bytes, .. } if dice.one_in(2) => *bytes = (dice.below(8) as i32).to_le_bytes().to_vec(),
            Value::Scalar { bytes, .. } => *bytes = (dice.number() as u32).to_le_bytes().to_vec(),
            Value::Text { bytes, said } => change_bytes(bytes, said, dice),
            Value::Array { .. } => {}
        }
    }
}

fn nest_arrays(file: &mut File, dice: &mut Dice) {
    let mut value = any_value(dice);
    for _ in 0..1 + dice.below(200) {
        let type_id = value.type_id();
        value = Value::array(type_id, [value]);
    }
    match dice.one_in(2) {
        true => file.set("nested", value),
        false => set_known_value(file, dice, value),
    }
}

fn set_known_value(file: &mut File, dice: &mut Dice, value: Value) {
    if let Some(entry) = entry(file, dice) {
        entry.value = value;
    }
}

fn drop_tensor(file: &mut File, dice: &mut Dice) {
    if !file.tensors.is_empty() {
        let at = dice.below(file.tensors.len());
        file.tensors.remove(at);
    }
}

fn double_tensor(file: &mut File, dice: &mut Dice) {
    let other = dice.pick(&[
        "output.weight",
        "output.bias",
        "rope_freqs.weight",
        "blk.0.attn_q_norm.weight",
        "blk.1.attn_q.weight",
    ]);
    if let Some(mut copy) = tensor(file, dice).cloned() {
        if dice.one_in(2) {
            copy.name = other.into();
        }
        file.tensors.push(copy);
    }
}

fn rename_tensor(file: &mut File, dice: &mut Dice) {
    let text = dice.pick(&TEXTS);
    let other = tensor(file, dice).map(|tensor| tensor.name.clone());
    let (Some(other), Some(tensor)) = (other, tensor(file, dice)) else { return };
    match dice.below(3) {
        0 => tensor.name = text.to_vec(),
        1 => tensor.name = other,
        _ => tensor.name = b"blk.18446744073709551615.attn_rot_embd".to_vec(),
    }
}

/// The shape says something else than the data holds.
fn reshape_tensor(file: &mut File, dice: &mut Dice) {
    let Some(tensor) = tensor(file, dice) else { return };
    let at = dice.below(tensor.dims.len());
    match dice.below(6) {
        0 => tensor.said_rank = Some(dice.number() as u32),
        1 => tensor.dims[at] = dice.number(),
        2 => tensor.dims.reverse(),
        3 => tensor.dims.push(dice.pick(&[0, 1, 2, u64::MAX])),
        4 => tensor.dims[at] = tensor.dims[at].wrapping_add_signed(dice.below(65) as i64 - 32),
        _ => drop(tensor.dims.pop()),
    }
    if tensor.dims.is_empty() {
        tensor.said_rank = Some(0);
        tensor.dims.push(1);
    }
}

/// A well-formed tensor of another size than the rest of the model expects.
fn resize_tensor(file: &mut File, dice: &mut Dice) {
    let Some(tensor) = tensor(file, dice) else { return };
    let at = dice.below(tensor.dims.len());
    tensor.dims[at] = 1 + dice.below(300) as u64;
    let Some(dtype) = DType::from_ggml(tensor.type_id) else { return };
    let Some(row) = dtype.row_bytes(tensor.dims[0]) else { return };
    let rows = elements(&tensor.dims[1..]);
    tensor.data.resize((row.saturating_mul(rows)).min(1 << 20) as usize, 0x3c);
}

fn elements(dims: &[u64]) -> u64 {
    dims.iter().fold(1, |product, &dim| product.saturating_mul(dim))
}

fn retype_tensor(file: &mut File, dice: &mut Dice) {
    let number = dice.number() as u32;
    let Some(tensor) = tensor(file, dice) else { return };
    tensor.type_id = if dice.one_in(5) { number } else { dice.below(45) as u32 };
    // Every bit pattern is a block of every type: enough bytes make it one.
    if dice.one_in(2) {
        let len = elements(&tensor.dims).min(1 << 16) as usize * 4;
        tensor.data.resize(len, 0x2a);
    }
}

fn move_tensor(file: &mut File, dice: &mut Dice) {
    let Some(tensor) = tensor(file, dice) else { return };
    tensor.said_offset = Some(match dice.below(4) {
        0 => dice.number(),
        1 => dice.number() & !31,
        _ => 32 * dice.below(2048) as u64,
    });
}

/// Weights, scales and norms that are not numbers, or too large ones.
fn spoil_data(file: &mut File, dice: &mut Dice) {
    let Some(tensor) = tensor(file, dice) else { return };
    let len = tensor.data.len();
    match dice.below(6) {
        0 => tensor.data.fill(0xff),
        1 => tensor.data.fill(0),
        2 => tensor.data.as_chunks_mut::<4>().0.fill(dice.float().to_le_bytes()),
        // Infinity and NaN in half precision.
        3 => tensor.data.as_chunks_mut::<2>().0.fill(dice.pick(&[[0, 0x7c], [1, 0x7c], [0, 0xfc], [0xff, 0x7b]])),
        4 => tensor.data = dice.bytes(len),
        _ => tensor.data.truncate(dice.below(len + 1)),
    }
}
