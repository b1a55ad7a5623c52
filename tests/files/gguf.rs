//! The GGUF reader: every version and value type, and files that lie about their sizes.

use crate::common;
use crate::common::gguf::Writer;
use segno::error::Error;
use segno::format::metadata::Array;
use segno::format::{Data, Gguf, Value};
use std::sync::Arc;

fn message(result: Result<Gguf, Error>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn every_version_gives_the_same_tensors_and_text() {
    for version in 1..=3 {
        let mut writer = Writer::new(version, 2, 1);
        writer.string(b"general.name").u32(8).string(b"small");
        writer.tensor("a", &[4, 2], 0, 0).tensor("b", &[3], 0, 32);
        let data: Vec<u8> = (0..44).collect();
        writer.data(32, &data);
        let gguf = writer.parse().unwrap();
        assert_eq!(gguf.metadata().text("general.name").unwrap(), Some("small"));
        let (a, b) = (gguf.tensor("a").unwrap(), gguf.tensor("b").unwrap());
        assert_eq!((a.dims.as_slice(), a.elements(), a.type_id), (&[4u64, 2][..], 8, 0));
        assert_eq!(&a.bytes(32).unwrap()[..], &data[..32]);
        assert_eq!(&b.bytes(12).unwrap()[..], &data[32..]);
        assert!(b.bytes(13).is_err());
        assert!(gguf.tensor("c").is_none());
    }
}

#[test]
fn every_scalar_type_is_read() {
    let mut writer = Writer::new(3, 0, 11);
    let values: [(u32, &[u8]); 11] = [
        (0, &[200]),
        (1, &[0xFE]),
        (2, &[1, 2]),
        (3, &[0xFF, 0xFF]),
        (4, &[1, 0, 0, 0x80]),
        (5, &[0xFD, 0xFF, 0xFF, 0xFF]),
        (6, &1.5f32.to_le_bytes()),
        (7, &[1]),
        (10, &u64::MAX.to_le_bytes()),
        (11, &i64::MIN.to_le_bytes()),
        (12, &(-2.25f64).to_le_bytes()),
    ];
    for (type_id, value) in values {
        writer.entry(&format!("k{type_id}"), type_id, value);
    }
    let gguf = writer.parse().unwrap();
    let meta = gguf.metadata();
    assert_eq!(meta.unsigned("k0").unwrap(), Some(200));
    assert!(matches!(meta.get("k1"), Some(Value::Signed(-2))));
    assert_eq!(meta.u32("k2").unwrap(), Some(513));
    assert!(matches!(meta.get("k3"), Some(Value::Signed(-1))));
    assert_eq!(meta.unsigned("k4").unwrap(), Some(0x8000_0001));
    assert!(meta.unsigned("k5").unwrap_err().to_string().contains("`k5` is negative (-3)"));
    assert_eq!(meta.f32("k6").unwrap(), Some(1.5));
    assert_eq!(meta.bool("k7").unwrap(), Some(true));
    assert!(meta.u32("k10").unwrap_err().to_string().contains("too large"));
    assert!(matches!(meta.get("k11"), Some(Value::Signed(i64::MIN))));
    assert_eq!(meta.f32("k12").unwrap(), Some(-2.25));
    assert_eq!(meta.f32("absent").unwrap(), None);
    assert!(meta.text("k7").is_err() && meta.bool("k0").is_err() && meta.f32("k7").is_err());
}

#[test]
fn arrays_of_numbers_strings_and_arrays_are_read() {
    let mut writer = Writer::new(3, 0, 3);
    writer.string(b"numbers").u32(9).u32(5).u64(3);
    writer.bytes.extend([1, 0, 0, 0, 2, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    writer.string(b"strings").u32(9).u32(8).u64(2).string(b"x").string(b"");
    writer.string(b"nested").u32(9).u32(9).u64(2).u32(0).u64(1);
    writer.bytes.push(7);
    writer.u32(8).u64(0);
    let gguf = writer.parse().unwrap();
    let meta = gguf.metadata();
    let numbers: Vec<i64> = meta
        .scalars("numbers")
        .unwrap()
        .unwrap()
        .map(|value| if let Value::Signed(v) = value { v } else { panic!("{value:?}") })
        .collect();
    assert_eq!(numbers, [1, 2, -1]);
    let strings = meta.strings("strings").unwrap().unwrap();
    assert_eq!((meta.bytes(&strings[0]), meta.bytes(&strings[1])), (&b"x"[..], &b""[..]));
    let Some(Value::Array(Array::Arrays(nested))) = meta.get("nested") else { panic!() };
    assert_eq!((nested[0].len(), nested[1].len()), (1, 0));
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let mut writer = Writer::new(3, 1, 2);
    writer.string(b"general.name").u32(8).string(b"small");
    writer.string(b"list").u32(9).u32(4).u64(2).u32(5).u32(6);
    writer.tensor("a", &[4, 2], 0, 0).data(32, &[0; 32]);
    let whole = writer.bytes.len();
    for len in 0..whole {
        let result = Gguf::parse(Arc::new(Data::Owned(writer.bytes[..len].to_vec())), &mut |_| Ok(()));
        match result {
            Err(Error::Format(text)) => assert!(!text.is_empty()),
            Err(other) => panic!("{other}"),
            Ok(gguf) => assert!(gguf.tensor("a").unwrap().bytes(32).is_err(), "cut at {len} of {whole}"),
        }
    }
}

#[test]
fn counts_that_cannot_fit_are_refused_before_anything_is_reserved() {
    for count in [1 << 20, u64::MAX / 2, u64::MAX] {
        assert!(message(Writer::new(3, count, 0).parse()).contains("tensors cannot fit"));
        assert!(message(Writer::new(3, 0, count).parse()).contains("metadata entries cannot fit"));
        let mut strings = Writer::new(3, 0, 1);
        strings.string(b"list").u32(9).u32(8).u64(count);
        assert!(message(strings.parse()).contains("cannot fit"));
        let mut numbers = Writer::new(3, 0, 1);
        numbers.string(b"list").u32(9).u32(12).u64(count);
        assert!(message(numbers.parse()).contains("cannot fit"));
        let mut key = Writer::new(3, 0, 1);
        key.u64(count);
        assert!(key.parse().is_err());
    }
}

#[test]
fn impossible_tensors_are_refused_by_name() {
    let with = |dims: &[u64], offset: u64| {
        let mut writer = Writer::new(3, 1, 0);
        writer.tensor("odd", dims, 0, offset).data(32, &[0; 64]);
        message(writer.parse())
    };
    for (dims, offset) in [
        (&[0u64][..], 0),
        (&[1 << 40, 1 << 40], 0),
        (&[], 0),
        (&[1; 5], 0),
        (&[4], 7),
        (&[4], 1 << 40),
        (&[4], u64::MAX - 31),
    ] {
        assert!(with(dims, offset).contains("`odd`"), "{dims:?} at {offset}");
    }
    let mut twice = Writer::new(3, 2, 0);
    twice.tensor("a", &[1], 0, 0).tensor("a", &[1], 0, 0).data(32, &[0; 64]);
    assert!(message(twice.parse()).contains("`a` appears twice"));
}

#[test]
fn keys_that_appear_twice_nest_too_deep_or_have_unknown_types_are_refused() {
    let mut twice = Writer::new(3, 0, 2);
    twice.entry("k", 0, &[1]).entry("k", 0, &[2]);
    assert!(message(twice.parse()).contains("`k` appears twice"));
    let nested = |arrays: usize| {
        let mut deep = Writer::new(3, 0, 1);
        deep.string(b"deep");
        deep.u32(9);
        for _ in 1..arrays {
            deep.u32(9).u64(1);
        }
        deep.u32(0).u64(0);
        deep.parse()
    };
    assert!(nested(4).is_ok());
    assert!(message(nested(5)).contains("`deep` nests") && message(nested(64)).contains("`deep` nests"));
    let mut unknown = Writer::new(3, 0, 1);
    unknown.entry("k", 77, &[0; 16]);
    assert!(message(unknown.parse()).contains("`k` has the unknown type 77"));
    let mut not_text = Writer::new(3, 0, 1);
    not_text.string(&[0xFF, 0xFE]).u32(0);
    assert!(message(not_text.parse()).contains("not utf-8"));
}

#[test]
fn names_and_arrays_of_arrays_have_limits() {
    let key = |bytes: usize| {
        let mut writer = Writer::new(3, 0, 1);
        writer.string(&vec![b'k'; bytes]).u32(0);
        writer.parse()
    };
    assert!(message(key(65_536)).contains("metadata key of 65536 bytes, at most 65535"));
    let tensor = |bytes: usize| {
        let mut writer = Writer::new(3, 1, 0);
        writer.tensor(&"t".repeat(bytes), &[4], 0, 0).data(32, &[0; 64]);
        writer.parse()
    };
    assert!(tensor(1024).is_ok());
    assert!(message(tensor(1025)).contains("tensor name of 1025 bytes, at most 1024"));
    let arrays = |count: u64| {
        let mut writer = Writer::new(3, 0, 1);
        writer.string(b"many");
        writer.u32(9).u32(9).u64(count);
        (0..count).for_each(|_| _ = writer.u32(0).u64(0));
        writer.parse()
    };
    assert!(arrays(60_000).is_ok());
    assert!(message(arrays(65_537)).contains("65537 arrays, at most"));
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    for (version, expected) in [(0, "version 0"), (4, "version 4"), (3u32.swap_bytes(), "big-endian")] {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend([0; 16]);
        let error = Gguf::parse(Arc::new(Data::Owned(bytes)), &mut |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains(expected), "{error}");
    }
    let error = Gguf::parse(Arc::new(Data::Owned(b"GGML0000".to_vec())), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("magic"));
}

#[test]
fn alignment_is_honoured_and_checked() {
    for alignment in [1u32, 8, 64] {
        let mut writer = Writer::new(3, 1, 1);
        writer.entry("general.alignment", 4, &alignment.to_le_bytes()).tensor("a", &[2], 0, 0);
        writer.data(alignment as usize, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(&writer.parse().unwrap().tensor("a").unwrap().bytes(8).unwrap()[..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    for alignment in [0u32, 3, 1 << 30] {
        let mut writer = Writer::new(3, 0, 1);
        writer.entry("general.alignment", 4, &alignment.to_le_bytes());
        assert!(message(writer.parse()).contains("general.alignment"));
    }
}

#[test]
fn real_files_open_or_fail_with_a_reason() {
    let Some(data) = common::shared_data() else { return };
    let open = |name: &str| Gguf::open(&data.join(name), true, &mut |_| Ok(()));
    assert!(open("files/empty.gguf").unwrap().tensors().is_empty());
    assert!(matches!(open("files/tiny.gguf"), Err(Error::Format(_))));
    assert!(matches!(open("files/tiny.safetensors"), Err(Error::Format(_))));
    assert!(matches!(open("files/absent.gguf"), Err(Error::Io { .. })));
    assert!(matches!(open("files"), Err(Error::InvalidArgument(_))));
    assert_eq!(open("models/stories260K.gguf").unwrap().tensors().len(), 48);
}

#[test]
fn a_file_that_is_read_equals_one_that_is_mapped_and_progress_reaches_one() {
    let path = common::bundled_model();
    let done = std::cell::RefCell::new(Vec::new());
    let note = &mut |part: f32| {
        done.borrow_mut().push(part);
        Ok(())
    };
    let read = Gguf::open(&path, false, note).unwrap();
    assert_eq!(done.borrow_mut().pop(), Some(1.0));
    let mapped = Gguf::open(&path, true, &mut |_| Ok(())).unwrap();
    done.borrow_mut().clear();
    mapped.populate(note).unwrap();
    assert_eq!(done.borrow_mut().pop(), Some(1.0));
    for (a, b) in read.tensors().iter().zip(mapped.tensors()) {
        assert_eq!((&a.name, &a.dims, a.type_id), (&b.name, &b.dims, b.type_id));
        assert_eq!(&a.bytes(16).unwrap()[..], &b.bytes(16).unwrap()[..]);
    }
    let cancelled = Gguf::open(&path, false, &mut |_| Err(Error::Cancelled));
    assert!(matches!(cancelled, Err(Error::Cancelled)));
}
