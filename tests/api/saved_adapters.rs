//! Saved sequences that have adapters: what is restored has them again and goes on as if it had never stopped, and where one is not loaded the
//! restoring is refused by its name.

use crate::common::adapters::{Adapter, Form, Lora, PROMPT};
use crate::common::saved::{restore, save};
use crate::common::{Ctx, Failed, Folder, Model, Session, greedy, root};
use crate::saved::{CHECK, HEADER, held, refused};
use segno::ffi::status::*;
use segno::quant::DType;
use twox_hash::XxHash3_128;

/// Where an adapter's factor is behind the number of them, how long its name is, and the name.
const SCALE: usize = HEADER + 4 + 16;
const LENGTH: usize = SCALE + 4;
const NAME: usize = LENGTH + 4;

/// A model, and files of adapters for it.
struct World {
    folder: Folder,
    name: &'static str,
    base: Vec<u8>,
}

impl World {
    fn new(name: &'static str) -> World {
        let base = std::fs::read(root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap();
        World { folder: Folder::new("saved-adapters"), name, base }
    }

    fn model(&self) -> Model {
        Ctx::new(|opts| opts.n_threads = 1).unwrap().load_buffer(&self.base).unwrap()
    }

    /// The adapter of a number, changed and with this name.
    fn changed(&self, model: &Model, number: u64, name: &str, change: impl FnOnce(&mut Lora)) -> Adapter {
        let dtype = if number.is_multiple_of(2) { DType::F32 } else { DType::F16 };
        let mut lora = Lora::random(&self.base, Form { dtype, ..Form::new(number, 4 + number as usize) }, |_| true);
        change(&mut lora);
        let (mut file, path) = (lora.file(), self.folder.join("adapter.gguf"));
        if !name.is_empty() {
            file.set("general.name", name);
        }
        file.write(&path);
        model.adapter(&path).unwrap()
    }

    fn adapter(&self, model: &Model, number: u64) -> Adapter {
        self.changed(model, number, &format!("Adapter {number}"), |_| ())
    }
}

/// A sequence with adapters that has written `steps` tokens.
fn begun(session: &Session, adapters: &[(&Adapter, f32)], steps: usize) -> i32 {
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, adapters).unwrap();
    session.prefill(seq, &PROMPT.repeat(3)).unwrap();
    session.generate(seq, steps).unwrap();
    seq
}

#[test]
fn a_restored_sequence_has_its_adapters_again_and_goes_on() {
    // Keys alone, a state and marks, and windows.
    for name in ["llama-ratio4", "lfm2-plain", "gemma3-plain"] {
        let world = World::new(name);
        let (model, other) = (world.model(), world.model());
        let [zero, one, two] = [0, 1, 2].map(|number| world.adapter(&model, number));
        // Loaded in another order, and beside one that nobody wants.
        let _loaded = [2, 3, 1, 0].map(|number| world.adapter(&other, number));
        let sets = [vec![(&one, 1.0)], vec![(&two, -0.5), (&zero, 1.5)], vec![(&zero, 0.3), (&one, 1.0), (&zero, 0.2)]];
        let session = model.session(|_| ()).unwrap();
        let places = [model.session(|_| ()).unwrap(), other.session(|opts| opts.max_prefill = 16).unwrap()];
        for (set, steps) in sets.iter().zip([0, 3, 9]) {
            let seq = begun(&session, set, steps);
            let bytes = save(&session, seq);
            let whole = session.generate(seq, 20).unwrap();
            for place in &places {
                let again = restore(place, &bytes).unwrap();
                // Of states those are kept that the next token needs.
                assert!(name == "lfm2-plain" || save(place, again) == bytes, "{name}: saved again");
                let before = place.stats().unwrap().prompt_tokens;
                assert_eq!(place.generate(again, 20).unwrap(), whole, "{name}, {} adapters", set.len());
                assert!(place.stats().unwrap().prompt_tokens <= before + 1, "{name}: evaluated anew");
                // A cut evaluates with them too, and none at all shows.
                place.truncate(again, 20).unwrap();
                session.truncate(seq, 20).unwrap();
                assert_eq!(place.generate(again, 5).unwrap(), session.generate(seq, 5).unwrap(), "{name}, cut");
                place.adapt(again, &[]).unwrap();
                assert_ne!(place.logits(again).unwrap(), session.logits(seq).unwrap());
                place.close(again).unwrap();
                let plain = begun(place, &[], 4);
                let fresh = begun(&session, &[], 4);
                assert_eq!(place.logits(plain).unwrap(), session.logits(fresh).unwrap(), "{name}: left behind");
                place.close(plain).unwrap();
                session.close(fresh).unwrap();
            }
            session.close(seq).unwrap();
        }
    }
}

#[test]
fn what_is_not_loaded_is_refused_by_name_and_hash() {
    let world = World::new("llama-ratio4");
    let (model, other) = (world.model(), world.model());
    let (first, second) = (world.adapter(&model, 1), world.changed(&model, 2, "", |_| ()));
    let session = model.session(|_| ()).unwrap();
    let bytes = save(&session, begun(&session, &[(&first, 1.0), (&second, 0.5)], 2));
    let place = other.session(|_| ()).unwrap();
    let before = held(&place);
    let lacks = |what: &str| {
        let Failed { status, message, .. } = refused(restore(&place, &bytes));
        assert_eq!((status, held(&place)), (SEGNO_E_NOT_FOUND, before));
        assert!(message.contains(what) && message.contains("not loaded"), "{message}");
        let (_, hash) = message.split_once("fingerprint ").unwrap();
        assert!(hash.split(')').next().unwrap().len() == 32, "{message}");
    };
    lacks("the adapter `Adapter 1` (fingerprint ");
    // Other numbers, another alpha, and another number of one tensor are other adapters.
    let _others = [
        world.changed(&other, 5, "Adapter 1", |_| ()),
        world.changed(&other, 1, "Adapter 1", |lora| lora.alpha += 1.0),
        world.changed(&other, 1, "Adapter 1", |lora| lora.pairs[3].b[7] += 1.0),
    ];
    lacks("the adapter `Adapter 1` (fingerprint ");
    // Its name may be another one.
    let renamed = world.changed(&other, 1, "Something else", |_| ());
    lacks("the adapter without a name (fingerprint ");
    let unnamed = world.changed(&other, 2, "", |_| ());
    let seq = restore(&place, &bytes).unwrap();
    // What a sequence has is there although the host has freed it, and afterwards it is not.
    drop((renamed, unnamed));
    let again = restore(&place, &bytes).unwrap();
    assert_eq!(place.generate(again, 5).unwrap(), place.generate(seq, 5).unwrap());
    place.close(seq).unwrap();
    place.close(again).unwrap();
    assert_eq!(held(&place), before);
    lacks("the adapter `Adapter 1` (fingerprint ");
}

/// A long name is cut at a character.
#[test]
fn names_are_told_as_far_as_they_go() {
    let world = World::new("llama-ratio4");
    let (model, other) = (world.model(), world.model());
    let adapter = world.changed(&model, 1, &"ä".repeat(1000), |_| ());
    let session = model.session(|_| ()).unwrap();
    let bytes = save(&session, begun(&session, &[(&adapter, 1.0)], 0));
    assert_eq!(bytes[LENGTH..NAME], 256u32.to_le_bytes());
    let failed = refused(restore(&other.session(|_| ()).unwrap(), &bytes));
    assert!(failed.message.contains(&format!("`{}`", "ä".repeat(128))), "{failed:?}");
}

/// Only sequences with adapters have the newer form.
#[test]
fn sequences_without_adapters_keep_their_form() {
    let world = World::new("llama-ratio4");
    let model = world.model();
    let (adapter, session) = (world.adapter(&model, 1), model.session(|_| ()).unwrap());
    let [plain, adapted] = [vec![], vec![(&adapter, 1.0)]].map(|set| save(&session, begun(&session, &set, 0)));
    assert_eq!((plain[8..12].to_vec(), adapted[8..12].to_vec()), (vec![2, 0, 0, 0], vec![3, 0, 0, 0]));
    let section = 4 + 24 + "Adapter 1".len() + CHECK;
    assert_eq!(plain.len() + section, adapted.len());
}

#[test]
fn what_a_stranger_says_of_adapters_is_checked() {
    let world = World::new("llama-ratio4");
    let model = world.model();
    let (adapter, session) = (world.adapter(&model, 1), model.session(|_| ()).unwrap());
    let seq = begun(&session, &[(&adapter, 1.0)], 0);
    let bytes = save(&session, seq);
    session.close(seq).unwrap();
    let (end, before) = (NAME + "Adapter 1".len(), held(&session));
    let check = |place: usize, value: &[u8], part: &str| {
        let mut forged = bytes.clone();
        forged[place..][..value.len()].copy_from_slice(value);
        for end in [end + CHECK, bytes.len()] {
            let seal = XxHash3_128::oneshot(&forged[if end < bytes.len() { HEADER } else { 0 }..end - CHECK]);
            forged[end - CHECK..end].copy_from_slice(&seal.to_le_bytes());
        }
        let failed = refused(restore(&session, &forged));
        assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains(part), "{failed:?}");
        assert_eq!(held(&session), before);
    };
    check(HEADER, &0u32.to_le_bytes(), "it has 0 adapters, 1 to 64 are possible");
    check(HEADER, &65u32.to_le_bytes(), "it has 65 adapters");
    check(HEADER, &u32::MAX.to_le_bytes(), "adapters");
    for scale in [f32::NAN, f32::NEG_INFINITY, 0.0] {
        check(SCALE, &scale.to_le_bytes(), "with the factor");
    }
    check(LENGTH, &257u32.to_le_bytes(), "name is too long");
    check(LENGTH, &u32::MAX.to_le_bytes(), "name is too long");
    check(NAME, &[0xff], "not utf-8");
    let mut damaged = bytes.clone();
    damaged[SCALE] ^= 1;
    assert!(refused(restore(&session, &damaged)).message.contains("checksum of its adapters"));
    assert!(restore(&session, &bytes).is_ok(), "of the model {}", world.name);
}
