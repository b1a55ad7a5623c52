//! A moment in UTC as text: `strftime` for `strftime_now`.

use super::budget::failure;
use crate::error::Result;

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
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAY_SECONDS: i64 = 86_400;
/// Longest format in bytes.
const MAX_FORMAT: usize = 4_096;

/// Parts of a moment.
struct Moment {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    day_of_year: i64,
    second_of_day: i64,
}

/// The moment `now`, in seconds since 1970, as `format` says.
pub(super) fn strftime(now: i64, format: &str) -> Result<String> {
    if format.len() > MAX_FORMAT {
        return failure(format!("time format of {} bytes, at most {MAX_FORMAT} are supported", format.len()));
    }
    let moment = Moment::of(now);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = characters.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = characters.next();
        }
        let Some(directive) = directive else { return failure("time format ends with %") };
        let part = moment.part(directive, now)?;
        let bare = part.trim_start_matches(['0', ' ']);
        out.push_str(match (unpadded, bare) {
            (false, _) => &part,
            (true, "") => "0",
            (true, bare) => bare,
        });
    }
    Ok(out)
}

impl Moment {
    /// Calendar date by days since 1970 (Hinnant, "chrono-compatible low-level date algorithms").
    fn of(now: i64) -> Moment {
        let days = now.div_euclid(DAY_SECONDS);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let month = (month_from_march + 2) % 12;
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let january_first = if month < 2 { 306 } else { -59 - i64::from(leap) };
        Moment {
            year,
            month: month as usize,
            day: day_from_march - (153 * month_from_march + 2) / 5 + 1,
            weekday: (days + 3).rem_euclid(7) as usize,
            day_of_year: day_from_march - january_first + 1,
            second_of_day: now.rem_euclid(DAY_SECONDS),
        }
    }

    fn part(&self, directive: char, now: i64) -> Result<String> {
        let (hour, minute, second) = (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let hour_of_half = if hour % 12 == 0 { 12 } else { hour % 12 };
        let (month, weekday) = (MONTHS[self.month], DAYS[self.weekday]);
        Ok(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month + 1),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'w' => ((self.weekday + 1) % 7).to_string(),
            'u' => (self.weekday + 1).to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_of_half:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'f' => "000000".to_owned(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month + 1, self.day),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", self.month + 1, self.day, self.year.rem_euclid(100)),
            'T' | 'X' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'c' => format!(
                "{} {} {:2} {hour:02}:{minute:02}:{second:02} {}",
                &weekday[..3],
                &month[..3],
                self.day,
                self.year
            ),
            's' => now.to_string(),
            'z' => "+0000".to_owned(),
            'Z' => "UTC".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            other => return failure(format!("unknown time directive %{other}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn moments_are_written_by_their_format() {
        let cases = [
            (1_721_995_200, "%d %b %Y", "26 Jul 2024"),
            (1_721_995_200, "%A, %-d %B %Y %H:%M:%S %j", "Friday, 26 July 2024 12:00:00 208"),
            (0, "%F %T %a %-j", "1970-01-01 00:00:00 Thu 1"),
            (951_782_400, "%D %I %p %j", "02/29/00 12 AM 060"),
            (1_735_603_200, "%j %e %y", "366 31 24"),
            (-1, "%c", "Wed Dec 31 23:59:59 1969"),
            (1_104_537_600, "%-m/%-d %-H", "1/1 0"),
        ];
        for (now, format, text) in cases {
            assert_eq!(strftime(now, format).unwrap(), text, "{format}");
        }
        assert!(strftime(0, "%").is_err() && strftime(0, "%Q").is_err());
    }
}
