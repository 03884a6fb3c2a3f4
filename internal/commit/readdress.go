package commit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/delayq/delayq/internal/record"
)

// The steps of a flow say where its last step is, so that each end goes there at once. In a topic
// with partitions that is known when the flow is started, and not when it is built.

// startFront is how many words of a start come before those of the steps.
const startFront = 2

var errStartWords = errors.New("delayq: the words of the start of a flow are damaged")

// moveStart makes a start one whose last step is in another place.
func (o *Op) moveStart(place string) error {
	words, err := readdressed(o.Flow.Words, place)
	if err != nil {
		return err
	}
	draft, err := readdressedRecord(string(o.Fresh.Draft), place)
	if err != nil {
		return err
	}
	o.Flow.Words, o.Fresh.Draft = words, record.Draft(draft)
	return nil
}

// readdressed returns the words of a start (see StartWords) with another place of the last step.
func readdressed(words []any, place string) ([]any, error) {
	words = append([]any{}, words...)
	last := len(words) - 1
	var steps, bundles int
	if last < startFront+1 {
		return nil, errStartWords
	}
	if n, _ := fmt.Sscan(fmt.Sprint(words[last-1], " ", words[last]), &steps, &bundles); n < 2 || startFront+3*steps+2*bundles+2 != len(words) {
		return nil, errStartWords
	}
	change := func(at int) error {
		text, _ := words[at].(string)
		if text == "" {
			return nil
		}
		now, err := readdressedParcel(text, place)
		words[at] = now
		return err
	}
	for n := range steps {
		if err := change(startFront + 3*n + 2); err != nil {
			return nil, err
		}
	}
	for n := range bundles {
		if err := change(startFront + 3*steps + 2*n + 1); err != nil {
			return nil, err
		}
	}
	return words, nil
}

// readdressedParcel changes a parcel, or all of a bundle, without their times.
func readdressedParcel(text, place string) (string, error) {
	if Format(text[0]) == formatBundle {
		front, rest := text[:min(len(text), 1+countLen)], text[min(len(text), 1+countLen):]
		var all strings.Builder
		all.WriteString(front)
		for rest != "" {
			one, after, ok := record.CutNetstring(rest)
			if !ok || one == "" || Format(one[0]) == formatBundle {
				return "", errStartWords
			}
			now, err := readdressedParcel(one, place)
			if err != nil {
				return "", err
			}
			all.WriteString(record.Netstring(now))
			rest = after
		}
		return all.String(), nil
	}
	p, err := DecodeParcel(strings.Repeat("0", atLen) + text)
	if err != nil || p.Format != FormatStep {
		return "", errors.Join(errStartWords, err)
	}
	link, err := record.DecodeLink(p.Link)
	if err != nil {
		return "", err
	}
	link.Topic = place
	p.Link = link.Link()
	if p.Row.Record, err = readdressedRecord(p.Row.Record, place); err != nil {
		return "", err
	}
	return p.Encode(), nil
}

// readdressedRecord changes the record of a step.
func readdressedRecord(rec, place string) (string, error) {
	job, err := record.Decode(rec)
	if err != nil {
		return "", err
	}
	if job.Options.Flow == nil {
		return "", errStartWords
	}
	of := *job.Options.Flow
	of.Topic = place
	job.Options.Flow = &of
	draft, err := record.NewDraft(record.Nonce([]byte(job.Nonce)), &job.Options, job.Payload)
	return string(draft), err
}

// moveStarts gives starts the address of the place to which they are sent. It settles those that
// cannot be read, and returns the others.
func (g *Group) moveStarts(list []*Op) (rest []*Op) {
	for i, o := range list {
		if o.Kind != FlowStart || g.key.topic == o.Topic && !o.moved {
			continue
		}
		if err := o.moveStart(g.key.topic); err != nil {
			o.Settle(err)
			rest = slices.Clone(list[:i])
			return append(rest, g.moveStarts(list[i+1:])...)
		}
		o.moved = true
	}
	return list
}
