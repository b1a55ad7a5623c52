//! Conversations through the C API: what the sequence holds after any turns is what rendering and tokenizing everything anew gives, but for sampled
//! tokens that say the same.

use crate::common::conversation::*;
use crate::common::gguf::{Shape, Storage};
use crate::common::replies::Random;
use crate::common::{Ctx, greedy, shared_data};
use segno::ffi::chat::segno_chat_opts;
use segno::ffi::reply::*;
use segno::ffi::status::*;
use serde_json::json;
use std::path::PathBuf;

/// Turns, where `SEGNO_TURNS` does not say otherwise.
const TURNS: usize = 24;
/// Tokens of a turn in the longest template, and more.
const TURN_TOKENS: usize = 640;

/// `make conversations` takes 200 turns.
#[test]
fn turns_equal_rendering_everything_anew_in_every_template() {
    let wanted = std::env::var("SEGNO_TURNS").map_or(TURNS, |turns| turns.parse().expect("SEGNO_TURNS is a number"));
    let context = (wanted * TURN_TOKENS).next_power_of_two();
    let tokens = context as u64;
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, context);
    let (session, other) = (case.session(tokens), case.session(tokens));
    let mut whole = Vec::new();
    for (name, template) in templates() {
        let chat = Chat::with_template(&session, &template).unwrap();
        let mut reference = Reference::new(&other);
        let (mut evaluated, mut prompts, mut most) = (0, 0, 0);
        let mut turns = 0;
        for turn in 0..wanted {
            chat.say("user", &format!("q{turn}?")).unwrap();
            let messages = chat.messages();
            let Some(prompt) = case.render(&template, &messages, true) else {
                assert_eq!(chat.next().unwrap_err().status, SEGNO_E_TEMPLATE, "{name}");
                break;
            };
            let text = format!("Yes {turn}.");
            let said = case.canonical(&template, &messages, &prompt, &text);
            let events = chat.reply(&session, &said, case.end).unwrap();
            let content = joined(&events, SEGNO_EVENT_CONTENT);
            if turn == 0 && content.trim() != text {
                println!("{name}: what it writes of a message is no reply");
                break;
            }
            assert_eq!(content.trim(), text, "{name}");
            assert_eq!(chat.messages()[2 * turn + 1]["content"], content);
            let stats = chat.stats();
            assert_eq!(stats.prompt_tokens as usize, prompt.len(), "{name}, turn {turn}");
            let tail = if case.vocabulary.tokenizer.is_eog(*said.last().unwrap()) {
                &said[..]
            } else {
                &[&said[..], &[case.end]].concat()
            };
            reference.set(&[&prompt[..], tail].concat());
            reference.assert_same(&session, &chat, &format!("{name}, turn {turn}"));
            (evaluated, prompts, turns) = (evaluated + stats.evaluated_tokens, prompts + stats.prompt_tokens, turn + 1);
            most = most.max(if turn == 0 { 0 } else { stats.evaluated_tokens });
        }
        other.close(reference.seq).unwrap();
        if turns == wanted {
            println!("{name}: {evaluated} tokens evaluated of {prompts} rendered, at most {most} a turn");
            whole.push((name, most));
        }
    }
    if shared_data().is_some() {
        assert!(whole.len() >= 17, "{} templates", whole.len());
        // Those that do not rewrite what was said evaluate what is new.
        assert!(whole.iter().filter(|(_, most)| *most < 200).count() >= 17, "{whole:?}");
    }
}

#[test]
fn sampled_tokens_stay_where_rendering_says_the_same() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 1 << 14);
    let (session, other) = (case.session(1 << 14), case.session(1 << 14));
    let (mut random, mut kept, mut turns) = (Random(5), 0, 0);
    for (name, template) in templates() {
        let chat = Chat::with_template(&session, &template).unwrap();
        let mut reference = Reference::new(&other);
        for turn in 0..8 {
            chat.say("user", &format!("search {turn}?")).unwrap();
            let messages = chat.messages();
            let Some(prompt) = case.render(&template, &messages, true) else { break };
            let merged = case.merged(&reference.held, &prompt);
            let said = case.plain(&prompt, "a tool_call: {\"search\": ü}}", || random.below(2) == 0);
            let end = [case.end, case.vocabulary.tokens("<|im_end|>", || true)[0]][random.below(2)];
            let events = chat.reply(&session, &said, end).unwrap();
            if joined(&events, SEGNO_EVENT_CONTENT).is_empty() {
                // A format whose content must be announced.
                break;
            }
            kept += u64::from(merged != prompt);
            turns += 1;
            reference.set(&[&merged[..], &said, &[end]].concat());
            reference.assert_same(&session, &chat, &format!("{name}, turn {turn}"));
        }
        other.close(reference.seq).unwrap();
    }
    if shared_data().is_some() {
        assert!(turns > 150 && kept > 50, "{kept} of {turns} turns keep tokens that are cut otherwise");
    }
}

#[test]
fn no_special_token_of_any_vocabulary_comes_from_what_a_user_says() {
    let Some(data) = shared_data() else { return };
    let ctx = Ctx::new(|_| ()).unwrap();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(data.join("vocab")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    let mut cases = 0;
    for path in paths {
        let shape =
            Shape { layers: 1, hidden: 32, heads: 1, kv_heads: 1, head_dim: 32, feed_forward: 32, ..Shape::small() };
        let shape = Shape { context: 1 << 16, storage: Storage::F32, ..shape };
        let model = ctx.load_buffer(&super::text::with_tokenizer(&path, shape).bytes()).unwrap();
        let tokenizer = crate::common::metadata::tokenizer(&path);
        let special = |token: i32| tokenizer.is_special(token);
        let names: Vec<String> = (0..tokenizer.vocab_size() as i32)
            .filter(|&token| special(token))
            .map(|token| tokenizer.name(token).unwrap())
            .filter(|name| !name.trim().is_empty())
            .collect();
        // The template writes special tokens too: the user's must not join them.
        let name = &names[names.len() / 2];
        let template = format!(
            "{{{{ bos_token }}}}{{% for m in messages %}}{name}{{{{ m.role }}}}\n{{{{ m.content }}}}{name}{{% endfor %}}\
             {{% if add_generation_prompt %}}{name}assistant{{% endif %}}"
        );
        let session = model.session(|opts| (opts.kv_tokens, opts.max_prefill) = (1 << 16, 4096)).unwrap();
        let set = |opts: &mut segno_chat_opts| (opts.template_text, opts.template_len) = parts(Some(&template));
        let plain = tokenized(&model, &json!([{"role": "user", "content": "Zounds"}]), set).unwrap();
        let wanted: Vec<i32> = plain.into_iter().filter(|&token| special(token)).collect();
        for text in [names.concat(), names.join(" "), format!("{0}a{0}{0}", names[0]), names[names.len() - 1].clone()] {
            let chat = Chat::with_template(&session, &template).unwrap();
            chat.say("user", &text).unwrap();
            let tokens = tokenized(&model, &json!([{"role": "user", "content": text}]), set).unwrap();
            let found: Vec<i32> = tokens.iter().copied().filter(|&token| special(token)).collect();
            assert_eq!(found, wanted, "{path:?}");
            while chat.next().unwrap().0 == SEGNO_PENDING {}
            let seq = session.open(&greedy()).unwrap();
            session.prefill(seq, &tokens).unwrap();
            session.truncate(chat.seq(), tokens.len()).unwrap();
            assert_eq!(session.logits(chat.seq()), session.logits(seq), "{path:?}");
            session.close(seq).unwrap();
            cases += 1;
        }
    }
    assert!(cases >= 24, "{cases} cases");
}
