//! Golden frames of real engines, layouts of older ones, and properties.

mod golden;
mod layouts;
mod properties;
