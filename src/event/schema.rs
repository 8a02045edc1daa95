//! JSON Schema of each event type.
