//! A moment in UTC as text: `strftime` for `strftime_now`.

use super::budget::{Budget, failure};
use super::heap::Text;
use super::value::Value;
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
pub(super) fn strftime(budget: &Budget, now: i64, format: &str) -> Result<Value> {
    if format.len() > MAX_FORMAT {
        return failure(format!("time format of {} bytes, at most {MAX_FORMAT} are supported", format.len()));
    }
    let moment = Moment::of(now);
    let mut out = Text::new(budget);
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        budget.spend(1)?;
        out.push(before)?;
        let flags = directive.len() - directive.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let after_flags = &directive[flags..];
        let digits = after_flags.len() - after_flags.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let width = if digits == 0 { Some(0) } else { after_flags[..digits].parse().ok() };
        let Some(width) = width.filter(|&width| width <= MAX_FORMAT) else {
            return failure(format!("width of a time format is too large, at most {MAX_FORMAT}"));
        };
        let letters = after_flags[digits..].strip_prefix(['E', 'O']).unwrap_or(&after_flags[digits..]);
        let part = letters.chars().next().and_then(|letter| Some((letter, moment.part(letter, now)?)));
        match part {
            Some((letter, part)) => {
                push_part(&mut out, part, &directive[..flags], width)?;
                rest = &letters[letter.len_utf8()..];
            }
            // What is no directive is text.
            None => {
                out.push("%")?;
                rest = directive;
            }
        }
    }
    out.push(rest)?;
    Ok(out.value())
}

/// A part of a moment: a number with its usual width and what fills it, or text.
enum Part {
    Number(i64, usize, char),
    Text(String),
}

/// Appends a part as the flags have it: `-` fills nothing, `_` and `0` fill with themselves, `^` and `#` change the case.
fn push_part(out: &mut Text, part: Part, flags: &str, width: usize) -> Result<()> {
    let filling = flags.chars().rev().find(|c| matches!(c, '-' | '_' | '0'));
    let (text, usual, usual_fill) = match part {
        Part::Number(number, usual, fill) => (number.to_string(), usual, fill),
        Part::Text(text) if flags.contains('#') && matches!(&*text, "AM" | "PM") => (text.to_lowercase(), 0, ' '),
        Part::Text(text) if flags.contains(['^', '#']) => (text.to_uppercase(), 0, ' '),
        Part::Text(text) => (text, 0, ' '),
    };
    let (fill, usual) = match filling {
        Some('-') => (usual_fill, 0),
        Some('_') => (' ', usual),
        Some(_) => ('0', usual),
        None => (usual_fill, usual),
    };
    let missing = if width > 0 { width } else { usual }.saturating_sub(text.len());
    out.repeat(fill.encode_utf8(&mut [0; 4]), missing)?;
    out.push(&text)
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

    /// The part that a letter stands for, as of a clock without a time zone; nothing for other letters.
    fn part(&self, letter: char, now: i64) -> Option<Part> {
        let (hour, minute, second) = (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let hour_of_half = if hour % 12 == 0 { 12 } else { hour % 12 };
        let (year, month, day) = (self.year, self.month as i64 + 1, self.day);
        let half = if hour < 12 { "AM" } else { "PM" };
        let clock = format!("{hour:02}:{minute:02}:{second:02}");
        let (month_name, weekday) = (MONTHS[self.month], DAYS[self.weekday]);
        Some(match letter {
            'd' => Part::Number(day, 2, '0'),
            'e' => Part::Number(day, 2, ' '),
            'm' => Part::Number(month, 2, '0'),
            'y' => Part::Number(year.rem_euclid(100), 2, '0'),
            'Y' => Part::Number(year, 0, '0'),
            'C' => Part::Number(year.div_euclid(100), 2, '0'),
            'G' => Part::Number(self.week().0, 0, '0'),
            'g' => Part::Number(self.week().0.rem_euclid(100), 2, '0'),
            'V' => Part::Number(self.week().1, 2, '0'),
            'U' => Part::Number((self.day_of_year + 6 - (self.weekday as i64 + 1) % 7) / 7, 2, '0'),
            'W' => Part::Number((self.day_of_year + 6 - self.weekday as i64) / 7, 2, '0'),
            'j' => Part::Number(self.day_of_year, 3, '0'),
            'u' => Part::Number(self.weekday as i64 + 1, 1, '0'),
            'w' => Part::Number((self.weekday as i64 + 1) % 7, 1, '0'),
            'H' => Part::Number(hour, 2, '0'),
            'I' => Part::Number(hour_of_half, 2, '0'),
            'k' => Part::Number(hour, 2, ' '),
            'l' => Part::Number(hour_of_half, 2, ' '),
            'M' => Part::Number(minute, 2, '0'),
            'S' => Part::Number(second, 2, '0'),
            'f' => Part::Number(0, 6, '0'),
            's' => Part::Number(now, 1, '0'),
            _ => Part::Text(match letter {
                'B' => month_name.to_owned(),
                'b' | 'h' => month_name[..3].to_owned(),
                'A' => weekday.to_owned(),
                'a' => weekday[..3].to_owned(),
                'p' => half.to_owned(),
                'P' => half.to_lowercase(),
                'F' => format!("{year}-{month:02}-{day:02}"),
                'D' | 'x' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
                'T' | 'X' => clock,
                'R' => format!("{hour:02}:{minute:02}"),
                'r' => format!("{hour_of_half:02}:{minute:02}:{second:02} {half}"),
                'c' => format!("{} {} {day:2} {clock} {year}", &weekday[..3], &month_name[..3]),
                'z' | 'Z' => String::new(),
                'n' => "\n".to_owned(),
                't' => "\t".to_owned(),
                '%' => "%".to_owned(),
                _ => return None,
            }),
        })
    }

    /// The year and week by ISO 8601: weeks begin on Monday and belong to the year that has their Thursday.
    fn week(&self) -> (i64, i64) {
        let weeks_of = |year: i64| {
            let last_weekday =
                |year: i64| (year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400)).rem_euclid(7);
            if last_weekday(year) == 4 || last_weekday(year - 1) == 3 { 53 } else { 52 }
        };
        match (self.day_of_year - self.weekday as i64 + 9) / 7 {
            0 => (self.year - 1, weeks_of(self.year - 1)),
            53 if weeks_of(self.year) == 52 => (self.year + 1, 1),
            week => (self.year, week),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, strftime};

    #[test]
    fn moments_are_written_by_their_format() {
        let budget = Budget::of_input();
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
            assert_eq!(strftime(&budget, now, format).unwrap().as_str(), Some(text), "{format}");
        }
        for (now, week) in
            [(1_104_537_600, "2004 53 00 00"), (1_230_768_000, "2009 01 00 00"), (1_704_067_200, "2024 01 00 01")]
        {
            assert_eq!(strftime(&budget, now, "%G %V %U %W").unwrap().as_str(), Some(week));
        }
    }
}
