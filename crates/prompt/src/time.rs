//! Wall time for chat templates that print the date, and Python's `strftime` in the C locale.

use minijinja::value::Object;

/// Wall time where the engine runs, for templates that print the date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year, as in 2026; 1000 to 9999.
    pub year: u32,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 59.
    pub second: u32,
}

impl Object for LocalTime {}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// `format` filled in; `None` for a directive that is not known here or a time that is none.
    pub(crate) fn strftime(&self, format: &str) -> Option<String> {
        let month = MONTHS.get(usize::try_from(self.month.checked_sub(1)?).ok()?)?;
        let weekday = DAYS.get(self.weekday())?;
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next()? {
                'Y' => out += &self.year.to_string(),
                'y' => out += &format!("{:02}", self.year % 100),
                'm' => out += &format!("{:02}", self.month),
                'd' => out += &format!("{:02}", self.day),
                'e' => out += &format!("{:2}", self.day),
                'B' => out += month,
                'b' | 'h' => out += month.get(..3)?,
                'A' => out += weekday,
                'a' => out += weekday.get(..3)?,
                'H' => out += &format!("{:02}", self.hour),
                'I' => out += &format!("{:02}", (self.hour + 11) % 12 + 1),
                'p' => out += if self.hour < 12 { "AM" } else { "PM" },
                'M' => out += &format!("{:02}", self.minute),
                'S' => out += &format!("{:02}", self.second),
                'F' => out += &format!("{}-{:02}-{:02}", self.year, self.month, self.day),
                'T' => out += &format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
                '%' => out.push('%'),
                // Without padding, in the C library that Linux has.
                '-' => match chars.next()? {
                    'd' => out += &self.day.to_string(),
                    'm' => out += &self.month.to_string(),
                    'H' => out += &self.hour.to_string(),
                    'I' => out += &((self.hour + 11) % 12 + 1).to_string(),
                    'M' => out += &self.minute.to_string(),
                    _ => return None,
                },
                _ => return None,
            }
        }
        Some(out)
    }

    /// Days after Sunday, by Sakamoto's method.
    fn weekday(&self) -> usize {
        const SHIFT: [u32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = if self.month < 3 { self.year.saturating_sub(1) } else { self.year };
        let shift = SHIFT.get(self.month.saturating_sub(1) as usize).copied().unwrap_or(0);
        ((year + year / 4 - year / 100 + year / 400 + shift + self.day) % 7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are CPython's.
    #[test]
    fn prints_dates_as_python_does() {
        let at = LocalTime { year: 2026, month: 11, day: 30, hour: 15, minute: 4, second: 5 };
        for (format, want) in [
            ("%d %b %Y", "30 Nov 2026"),
            ("%A, %B %-d, %Y", "Monday, November 30, 2026"),
            ("%Y-%m-%d %H:%M:%S %I%p %%", "2026-11-30 15:04:05 03PM %"),
        ] {
            assert_eq!(at.strftime(format).as_deref(), Some(want));
        }
        assert_eq!(LocalTime { month: 2, day: 29, year: 2024, ..at }.strftime("%a").as_deref(), Some("Thu"));
        assert_eq!(LocalTime { month: 0, ..at }.strftime("%a"), None);
        assert_eq!(at.strftime("%Q"), None);
    }
}
