//! Random numbers from a seed.

use sha2::{Digest as _, Sha256};

/// Deterministic source of random numbers.
#[derive(Debug)]
pub(super) struct Random {
    seed: Vec<u8>,
    draws: u64,
}

impl Random {
    pub(super) fn new(seed: &[u8]) -> Self {
        Self { seed: seed.to_vec(), draws: 0 }
    }

    /// Returns 32 random bytes.
    pub(super) fn bytes(&mut self) -> [u8; 32] {
        self.draws += 1;
        let digest = Sha256::new().chain_update(self.draws.to_be_bytes()).chain_update(&self.seed);
        digest.finalize().into()
    }

    /// Returns a number below `limit`, which must not be 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        let bytes = self.bytes();
        let number = u64::from_be_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]);
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        usize::try_from(number % limit).unwrap_or(0)
    }
}
