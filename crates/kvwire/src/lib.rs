//! KV cache event batches as vLLM and SGLang publish them: encoding and decoding.
