//! The C API as a host calls it: contexts, sessions, sequences, sampling, text and chats.

#[path = "../common/mod.rs"]
mod common;

mod adapter_rules;
mod adapter_vectors;
mod adapters;
mod assistants;
mod chat_submit;
mod chats;
mod conversation_room;
mod conversation_tools;
mod conversation_turns;
mod conversations;
mod eagle;
mod embeddings;
mod grammar_suite;
mod grammar_texts;
mod grammar_tokens;
mod grammar_walks;
mod grammars;
mod predictors;
mod sampling;
mod saved;
mod saved_adapters;
mod saved_grammars;
mod sequences;
mod sessions;
mod speculation;
mod steps;
mod structs;
mod submit;
mod text;
mod tools;
