//! ATIF trajectories: lengths and times of steps. A prompt is taken to extend the one before and its answer; one
//! that is shorter begins anew.

use std::time::Duration;

use serde::Deserialize;

use super::{ImportError, ImportOptions, lines, stream};
use crate::build::{Draft, Turn};
use crate::ids::{mix, of_text};
use crate::repair::{Repair, Repairs};

#[derive(Deserialize)]
struct Trajectory {
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    trajectory_id: Option<String>,
    #[serde(default)]
    steps: Vec<Step>,
    #[serde(default)]
    subagent_trajectories: Option<Vec<Trajectory>>,
}

#[derive(Deserialize)]
struct Step {
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    source: String,
    #[serde(default)]
    model_name: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(default)]
    metrics: Option<Metrics>,
    #[serde(default)]
    is_copied_context: Option<bool>,
}

#[derive(Deserialize)]
struct Metrics {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

const BLOCK_SIZE: u32 = 16;

pub(super) fn read(
    text: &[u8],
    options: &ImportOptions,
    repairs: &mut Repairs,
) -> Result<(Vec<Draft>, u32), ImportError> {
    let size = options.block_size.unwrap_or(BLOCK_SIZE).max(1);
    let whole = serde_json::from_slice::<Trajectory>(text);
    let trajectories: Vec<Trajectory> = match whole {
        Ok(trajectory) => vec![trajectory],
        Err(_) => {
            let mut list = Vec::new();
            for (number, line) in lines(text) {
                match serde_json::from_slice(line) {
                    Ok(trajectory) => list.push(trajectory),
                    Err(error) => repairs.note(Repair::BadRow, format_args!("line {number}: {error}"))?,
                }
            }
            list
        }
    };
    let mut drafts = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        walk(trajectory, &format!("trajectory-{}", index + 1), None, size, &mut drafts);
    }
    Ok((drafts, size))
}

fn walk(trajectory: &Trajectory, fallback: &str, parent: Option<&str>, size: u32, drafts: &mut Vec<Draft>) {
    let own =
        trajectory.trajectory_id.as_ref().filter(|_| parent.is_some()).or(trajectory.session_id.as_ref());
    let name = own.map_or(fallback, String::as_str);
    let mut draft = Draft { id: name.into(), parent: parent.map(Into::into), ..Draft::default() };
    let mut epoch = of_text(name);
    let mut came: Option<Duration> = None;
    for step in &trajectory.steps {
        let at = step.timestamp.as_deref().and_then(instant);
        let metrics =
            step.metrics.as_ref().filter(|_| step.source == "agent" && step.is_copied_context != Some(true));
        if let Some(input) = metrics.and_then(|metrics| metrics.prompt_tokens).filter(|input| *input > 0) {
            if draft.turns.last().is_some_and(|before| before.input > input) {
                epoch = mix(epoch, input);
            }
            // A step is stamped when it is complete; the call began when what it answers was there.
            let end = at.max(came);
            draft.turns.push(Turn {
                start: came.or(end),
                end,
                input,
                output: metrics.and_then(|metrics| metrics.completion_tokens).unwrap_or(0),
                ids: stream(epoch, input, size),
                tools: step.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()),
                model: step.model_name.as_deref().map(Into::into),
                ..Turn::default()
            });
        }
        came = at.or(came);
    }
    let name = draft.id.clone();
    drafts.push(draft);
    for (index, child) in trajectory.subagent_trajectories.iter().flatten().enumerate() {
        walk(child, &format!("{name}/{index}"), Some(&name), size, drafts);
    }
}

/// Time since 1970 of an ISO 8601 time with date, time and zone (none = UTC).
fn instant(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone_at = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(zone_at);
    let mut clock = clock.splitn(3, ':');
    let (hours, minutes) = (clock.next()?.parse::<i64>().ok()?, clock.next()?.parse::<i64>().ok()?);
    let seconds: f64 = clock.next().unwrap_or("0").parse().ok()?;
    let offset = match zone.strip_prefix(['+', '-']) {
        None => 0,
        Some(rest) => {
            let (h, m) = rest.split_once(':').unwrap_or_else(|| rest.split_at(rest.len().min(2)));
            let minutes = h.parse::<i64>().ok()? * 60 + m.parse::<i64>().unwrap_or(0);
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    // Days since 1970 of a civil date (Howard Hinnant's algorithm, years from March).
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let whole = u64::try_from(days * 86_400 + hours * 3_600 + (minutes - offset) * 60).ok()?;
    Some(Duration::from_secs(whole) + Duration::try_from_secs_f64(seconds).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_times_in_all_usual_spellings() {
        let at = |text| instant(text).map(|time| time.as_millis());
        assert_eq!(at("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(at("2026-06-01T05:40:20.151Z"), Some(1_780_292_420_151));
        assert_eq!(at("2026-06-01T07:40:20.151+02:00"), Some(1_780_292_420_151));
        assert_eq!(at("2000-02-29 12:00:00"), Some(951_825_600_000));
        assert_eq!(at("yesterday"), None);
    }
}
