package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq/internal/record"
)

// A cronField is one of the fields of a rule.
type cronField struct {
	name      string
	low, high int
	names     []string // of the values from low on
	unit      string   // from one value to the next, as in a duration; empty: it differs
}

var cronFields = [...]cronField{
	{"second", 0, 59, nil, "s"},
	{"minute", 0, 59, nil, "m"},
	{"hour", 0, 23, nil, "h"},
	{"day of month", 1, 31, nil, "h"},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}, ""},
	{"day of week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}, ""},
}

// Places of fields in cronFields.
const (
	dayField     = 3
	monthField   = 4
	weekdayField = 5
)

// cronForms are the rules that a word stands for.
var cronForms = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// mostMistakes is how many mistakes of a rule are listed.
const mostMistakes = 20

// A cronParser collects what a rule means and what is wrong with it.
type cronParser struct {
	mistakes []string
	more     int
	// broken says that there is a mistake which earlier releases refused too. Without one, the rule
	// means what it meant to them.
	broken bool
}

// parseCron parses a rule as crontab(5) defines it, with an optional field for seconds in front. It
// returns everything that is wrong with it.
//
// Earlier releases accepted more. They stored rules that are mistakes today, and those are still in
// Redis. So a rule that they understood is returned in spite of its mistakes, with their meaning.
// Otherwise the rule is nil if there are mistakes.
func parseCron(text string) (*cronRule, []string) {
	p := new(cronParser)
	r := p.parse(text)
	if p.more > 0 {
		p.mistakes = append(p.mistakes, fmt.Sprintf("and %d more", p.more))
	}
	if p.broken {
		r = nil
	}
	return r, p.mistakes
}

// wrong notes a mistake that earlier releases refused too.
func (p *cronParser) wrong(format string, args ...any) {
	p.broken = true
	p.doubtful(format, args...)
}

// doubtful notes a mistake that earlier releases did not see.
func (p *cronParser) doubtful(format string, args ...any) {
	if len(p.mistakes) == mostMistakes {
		p.more++
		return
	}
	p.mistakes = append(p.mistakes, fmt.Sprintf(format, args...))
}

func (p *cronParser) parse(text string) *cronRule {
	if !utf8.ValidString(text) {
		p.wrong("not valid UTF-8")
		return nil
	}
	fields := strings.Fields(text)
	if len(fields) > 0 {
		switch first := fields[0]; {
		case strings.Contains(first, "TZ="):
			p.wrong("%.60q: the zone is not part of the rule: it is given separately", first)
			return nil
		case strings.HasPrefix(first, "@"):
			return p.form(first, fields[1:])
		}
	}
	if n := len(fields); n != 5 && n != 6 {
		hint := "minute, hour, day of month, month and day of week, with an optional second in front"
		if n > 6 {
			hint += " (a rule has neither a year nor a command)"
		}
		p.wrong("want 5 or 6 fields, got %d: %s", n, hint)
		return nil
	}
	sets := [len(cronFields)]uint64{1} // second 0
	skip := len(cronFields) - len(fields)
	at, ats := 0, [len(cronFields)]int{}
	for i, field := range fields {
		at += strings.Index(text[at:], field)
		ats[skip+i] = at
		sets[skip+i] = p.field(&cronFields[skip+i], field, at)
		at += len(field)
	}
	day, month, weekday := fields[dayField-skip], fields[monthField-skip], fields[weekdayField-skip]
	r := &cronRule{
		second: sets[0], minute: sets[1], hour: sets[2], day: sets[dayField], month: sets[monthField], weekday: sets[weekdayField],
		both: isStar(day) || isStar(weekday),
	}
	r.weekday = (r.weekday | r.weekday>>7) & (1<<7 - 1)
	if last := longest(r.month); len(p.mistakes) == 0 && r.both && r.day&(1<<(last+1)-1) == 0 {
		p.doubtful("%s: month %.60q has at most %d days, so the rule has no future slots: write %d or less",
			place(&cronFields[dayField], day, ats[dayField]), month, last, last)
	}
	return r
}

// isStar reports whether a day field does not count as restricted. Earlier releases accepted a
// question mark for a star.
func isStar(field string) bool { return field[0] == '*' || field[0] == '?' }

// longest returns how many days the longest of some months has.
func longest(months uint64) (days int) {
	for month := time.January; month <= time.December; month++ {
		if months>>month&1 != 0 {
			days = max(days, daysOf(2000, month)) // a leap year
		}
	}
	return days
}

// form parses a rule that is a word, such as @daily.
func (p *cronParser) form(word string, rest []string) *cronRule {
	rule, known := cronForms[word]
	lower := strings.ToLower(word)
	switch {
	case known && len(rest) > 0:
		p.wrong("nothing can follow %s", word)
	case known:
		return p.parse(rule)
	case word == "@every":
		p.wrong("@every needs a duration, such as @every 90m")
	case word == "@reboot":
		p.wrong("@reboot is not a time: enqueue the job when the program starts")
	case cronForms[lower] != "" || lower == "@every":
		p.wrong("unknown %.60q: write %s", word, lower)
	default:
		p.wrong("unknown %.60q: want @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or @every with a duration", word)
	}
	return nil
}

// place says which part of a field is meant, and where it is.
func place(f *cronField, part string, at int) string {
	return fmt.Sprintf("%s %.60q at byte %d", f.name, part, at)
}

// field returns the values of a field, which is a list.
func (p *cronParser) field(f *cronField, text string, at int) (set uint64) {
	empty, all := false, at
	for item := range strings.SplitSeq(text, ",") {
		if item == "" {
			empty = true
		} else {
			set |= p.item(f, item, at)
		}
		at += len(item) + 1
	}
	switch where := place(f, text, all); {
	case empty && strings.Trim(text, ",") == "":
		p.wrong("%s: the list is empty: write * or a value", where)
	case empty:
		p.doubtful("%s: the list has an empty entry: leave out the extra comma", where)
	}
	return set
}

// item returns the values of one entry of a list: a star, a value or a range, with a step or
// without.
func (p *cronParser) item(f *cronField, item string, at int) uint64 {
	where := place(f, item, at)
	if hint := foreign(f, item); hint != "" {
		p.wrong("%s: %s", where, hint)
		return 0
	}
	span, stepText, stepped := strings.Cut(item, "/")
	lowText, highText, ranged := strings.Cut(span, "-")
	star := lowText == "*" || lowText == "?"
	low, high, lone := f.low, f.high, false
	switch {
	case star && span != "*":
		p.doubtful("%s: write * instead of %.60q", where, span)
	case star:
	default:
		var ok bool
		if low, ok = p.value(f, item, lowText, where); !ok {
			return 0
		}
		switch {
		case ranged:
			if high, ok = p.end(f, item, highText, where, low); !ok {
				return 0
			}
		case stepped:
			if lone = true; f.names != nil && high == 7 {
				high = 6
			}
		default:
			high = low
		}
	}
	if !star && strings.Count(span, "-") > 1 {
		p.wrong("%s: a range has two ends, such as %d-%d", where, f.low, f.high)
		return 0
	}
	step := 1
	if stepped {
		var ok bool
		if step, ok = number(stepText); !ok || step == 0 {
			p.wrong("%s: the step must be a positive number, at most %d", where, max(1, high-low))
			return 0
		}
	}
	switch {
	case low > high && !lone:
		p.wrong("%s: the range goes backwards: write %s", where, around(f, low, high, step))
		return 0
	case step > max(1, high-low):
		p.doubtful("%s: the step is too large for %d-%d, where the largest is %d, and only %d would match: write %s",
			where, low, high, max(1, high-low), low, instead(f, low, step))
	case lone:
		p.doubtful("%s: a step needs a range: write %d-%d/%d", where, low, high, step)
	}
	if strings.Contains(lowText+highText+stepText, "+") {
		p.doubtful("%s: write numbers without a plus sign", where)
	}
	return values(low, high, step)
}

// values returns the set of every step-th value from low to high.
func values(low, high, step int) (set uint64) {
	for value := low; value <= high; value += step {
		set |= 1 << value
	}
	return set
}

// value returns the value of a number or a name, which is an item or a part of it.
func (p *cronParser) value(f *cronField, item, text, where string) (int, bool) {
	word := strings.ToLower(text)
	if i := slices.Index(f.names, word); i >= 0 {
		return f.low + i, true
	}
	n, ok := number(text)
	if ok && n >= f.low && n <= f.high {
		return n, true
	}
	want := fmt.Sprintf("must be a number from %d to %d", f.low, f.high)
	if f.names != nil {
		want += fmt.Sprintf(" or a name from %s to %s", f.names[0], f.names[len(f.names)-1])
	}
	switch {
	case text == "":
		want = fmt.Sprintf("a range has two ends, such as %d-%d", f.low, f.high)
	case f.names != nil && len(word) > 3 && slices.Contains(f.names, word[:3]):
		want += ": write " + word[:3]
	case ok && n == f.high+1 && f.low == 0 && f.names == nil:
		want += ": write 0"
	}
	if text != item && text != "" {
		want = fmt.Sprintf("%.60q %s", text, want)
	}
	p.wrong("%s: %s", where, want)
	return 0, false
}

// end returns the value of the end of a range. There, the name of Sunday is 7.
func (p *cronParser) end(f *cronField, item, text, where string, low int) (int, bool) {
	text, _, _ = strings.Cut(text, "-") // item complains of a second hyphen
	high, ok := p.value(f, item, text, where)
	if high == 0 && low > 0 && f.names != nil && strings.EqualFold(text, f.names[0]) {
		high = 7
	}
	return high, ok
}

// number returns the value of some digits. One that is too large for any field stays so.
func number(text string) (int, bool) {
	digits := strings.TrimPrefix(text, "+")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > 1<<30 {
		n = 1 << 30
	}
	return n, true
}

// foreign explains what is not in crontab(5), but in other dialects of cron.
func foreign(f *cronField, item string) string {
	word := strings.ToLower(item)
	days := f.name == cronFields[dayField].name
	weekdays := f.name == cronFields[weekdayField].name
	switch {
	case strings.Contains(word, "#"), weekdays && len(word) == 2 && word[1] == 'l':
		return "crontab(5) does not count weekdays: write days of the month and */7, such as 0 9 1-7 * */7 for the first Sunday, or use a calendar"
	case days && strings.ContainsAny(word, "lw") && strings.Trim(word, "lw0123456789-") == "":
		return "crontab(5) has neither L nor W: use a calendar"
	case strings.Contains(word, "~"), word[0] == 'h' && strings.Trim(word, "h0123456789-()/") == "":
		return "crontab(5) leaves nothing to chance: write a value, and use a jitter"
	}
	return ""
}

// around spells a range that goes beyond the end of its field.
func around(f *cronField, low, high, step int) string {
	last := f.high
	if f.names != nil && last == 7 {
		last = 6
	}
	var list []string
	if step == 1 {
		if f.high == 7 && high == 0 {
			return fmt.Sprintf("%d-7", low)
		}
		for _, span := range [][2]int{{low, f.high}, {f.low, high}} {
			if span[0] == span[1] {
				list = append(list, strconv.Itoa(span[0]))
			} else {
				list = append(list, fmt.Sprintf("%d-%d", span[0], span[1]))
			}
		}
		return strings.Join(list, ",")
	}
	for value := low; value <= high+last-f.low+1 && len(list) < last; value += step {
		list = append(list, strconv.Itoa(f.low+(value-f.low)%(last-f.low+1)))
	}
	return strings.Join(list, ",")
}

// instead says what to write if a step is larger than its range.
func instead(f *cronField, low, step int) string {
	text := strconv.Itoa(low)
	if f.unit == "" {
		return text
	}
	if f.name == cronFields[dayField].name {
		step *= 24
	}
	every := fmt.Sprintf("%d%s", step, f.unit)
	if d, err := time.ParseDuration(every); err != nil || d > record.MaxDelay*time.Millisecond {
		return text
	}
	return fmt.Sprintf("%s, or @every %s as the whole rule", text, every)
}
