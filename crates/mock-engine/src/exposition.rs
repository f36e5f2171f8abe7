//! Prometheus text as the Python client writes it.

use std::fmt::Write;

use crate::observe::Histogram;

/// Text under construction.
#[derive(Debug, Default)]
pub(crate) struct Exposition(pub(crate) String);

/// A number as the Python client writes it: `1.0`, and an exponent from a million on.
pub(crate) fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let plain = format!("{value:?}");
    let Some(dot) = plain.find('.').filter(|dot| value > 0.0 && *dot > 6 && !plain.contains('e')) else {
        return plain;
    };
    let (whole, fraction) = (plain.get(..dot).unwrap_or_default(), plain.get(dot + 1..).unwrap_or_default());
    let (first, rest) = whole.split_at(1);
    let mantissa = format!("{first}.{rest}{fraction}");
    let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
    format!("{mantissa}e+{:02}", dot - 1)
}

impl Exposition {
    /// Begins a family.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; `labels` without braces.
    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {}", number(value))
        } else {
            writeln!(self.0, "{name}{{{labels}}} {}", number(value))
        };
    }

    /// A histogram's samples; `le` stands where the alphabet puts it among the labels.
    pub(crate) fn histogram(&mut self, name: &str, before: &str, after: &str, histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        let join = |le: &str| {
            let parts = [before, &format!("le=\"{le}\""), after];
            parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(",")
        };
        let mut sum = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            sum += count;
            self.sample(&bucket, &join(&number(*bound)), float(sum));
        }
        self.sample(&bucket, &join("+Inf"), float(histogram.count));
        let labels = [before, after].iter().filter(|l| !l.is_empty()).copied().collect::<Vec<_>>().join(",");
        self.sample(&format!("{name}_count"), &labels, float(histogram.count));
        self.sample(&format!("{name}_sum"), &labels, histogram.sum);
    }
}

/// A counter as a float.
#[expect(clippy::cast_precision_loss, reason = "prometheus has floats only")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// A label's value, escaped.
pub(crate) fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (3842.0, "3842.0"),
            (0.6039528846740723, "0.6039528846740723"),
            (999_999.0, "999999.0"),
            (1_066_176_512.0, "1.066176512e+09"),
            (1_795_960_169.0, "1.795960169e+09"),
            (2_097_152.0, "2.097152e+06"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
