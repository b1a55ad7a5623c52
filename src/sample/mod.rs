//! From logits to a token: filters, penalties, and a stateless draw.
