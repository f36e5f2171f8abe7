//! Clients for vLLM and SGLang: discovery, health, load, and the HTTP hop.
