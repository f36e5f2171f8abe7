//! The worker index: what each worker holds, tier by tier.
