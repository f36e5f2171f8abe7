//! The HTTP gateway: request path, scheduler owner task, admin API, metrics.
