//! What a program and a runner take of memory, on the host and on a device.

/// Bytes that a program and a runner take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights, the mapped file included.
    pub weights: u64,
    /// Cache.
    pub kv: u64,
    /// Buffers of the forward pass.
    pub arena: u64,
    /// Weights in device memory.
    pub device_weights: u64,
    /// Cache in device memory.
    pub device_kv: u64,
    /// Buffers of the forward pass in device memory.
    pub device_arena: u64,
    /// Graphs in device memory, as the driver keeps them.
    pub device_graphs: u64,
}

impl Memory {
    /// The sum of both.
    pub fn with(&self, other: &Memory) -> Memory {
        Memory {
            weights: self.weights.saturating_add(other.weights),
            kv: self.kv.saturating_add(other.kv),
            arena: self.arena.saturating_add(other.arena),
            device_weights: self.device_weights.saturating_add(other.device_weights),
            device_kv: self.device_kv.saturating_add(other.device_kv),
            device_arena: self.device_arena.saturating_add(other.device_arena),
            device_graphs: self.device_graphs.saturating_add(other.device_graphs),
        }
    }

    /// What a session takes of the host's memory, beside so many bytes of weights.
    pub fn on_host(&self, weights: u64) -> u64 {
        self.kv.saturating_add(self.arena).saturating_add(weights)
    }
}
