//! What one request asks of routing, beyond the fleet's settings.

use serde::{Deserialize, Serialize};

/// What one request asks of routing. The default asks for nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteWishes {
    /// Labels that a worker must carry, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<String>,
    /// Taints that the request puts up with. A worker with any other taint is no candidate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerate: Vec<String>,
    /// Labels that a worker had better carry, or had better not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<LabelWish>,
    /// Weights that this request wants instead of the fleet's.
    #[serde(skip_serializing_if = "WeightOverrides::is_empty")]
    pub weights: WeightOverrides,
}

impl RouteWishes {
    /// Nothing is asked for.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            require: Vec::new(),
            tolerate: Vec::new(),
            prefer: Vec::new(),
            weights: WeightOverrides::none(),
        }
    }
}

/// A label that a worker had better carry, or had better not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelWish {
    /// The label.
    pub label: String,
    /// Above 0: a worker without the label counts as if this part of the prompt had to be computed anew there.
    /// Below 0: the same for a worker with it.
    pub weight: f64,
}

/// Weights of the cost formula, one by one; absent = the fleet's. Values that make no sense (not finite, out of
/// range) are taken to the nearest that does, or ignored.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WeightOverrides {
    /// Part of a block's prefill that a copy in device memory saves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<f64>,
    /// The same for host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<f64>,
    /// The same for disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<f64>,
    /// The same for a shared store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<f64>,
    /// Weight of prefill that is queued before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<f64>,
    /// Tokens that one running request counts as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// 0 = the cheapest worker; above, workers are drawn, cheap ones more often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

impl WeightOverrides {
    /// No override.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            device: None,
            host: None,
            disk: None,
            shared: None,
            queued: None,
            decode: None,
            temperature: None,
        }
    }

    /// The weight of that name, as headers and files spell it; `None` = there is no such weight.
    #[must_use]
    pub fn named(&mut self, name: &str) -> Option<&mut Option<f64>> {
        Some(match name {
            "device" => &mut self.device,
            "host" => &mut self.host,
            "disk" => &mut self.disk,
            "shared" => &mut self.shared,
            "queued" => &mut self.queued,
            "decode" => &mut self.decode,
            "temperature" => &mut self.temperature,
            _ => return None,
        })
    }

    /// Whether nothing is overridden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::none()
    }
}
