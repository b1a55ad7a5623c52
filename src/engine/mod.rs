//! The nouns of the C API: context, model, session, sequence, batch.
