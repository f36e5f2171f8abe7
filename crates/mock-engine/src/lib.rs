//! HTTP and ZeroMQ face on the modelled engine: speaks vLLM's and SGLang's wire.
