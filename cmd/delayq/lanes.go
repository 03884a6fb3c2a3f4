package main

import (
	"strconv"

	"github.com/spf13/cobra"
)

const (
	schemaKey  = "delayq.key/1"
	schemaKeys = "delayq.keys/1"
)

// A keyRecord is a key that has ready jobs.
type keyRecord struct {
	Topic string `json:"topic"`
	jobKey
	Waiting int64  `json:"waiting"` // ready jobs of the key
	Weight  int    `json:"weight"`
	First   string `json:"first"` // ID of the next job to start, with U+FFFD for what is not UTF-8

	FirstBase64 []byte `json:"first_base64,omitempty"` // only if First is not exact
}

// exactFirst returns the ID of the first job itself.
func (r *keyRecord) exactFirst() string {
	ref := jobRef{ID: r.First, IDBase64: r.FirstBase64}
	return ref.exact()
}

// keyText writes a key for people, and nothing for a job without one.
func keyText(k *jobKey) string {
	if key := k.exactKey(); key != "" {
		return idText(key)
	}
	return ""
}

func (a *app) keysCommand() *cobra.Command {
	var after string
	var limit int
	var whole bool
	cmd := &cobra.Command{
		Use:   "keys TOPIC",
		Short: "List the keys that have ready jobs",
		Long: `List the keys of a topic that have ready jobs, with the number of these jobs, the weight
of the key, and the job that is the next one of the key to start. Keys are sorted by
their length and then by their bytes. A key that is not printable is shown as base64:…

A list ends after --limit keys. Then stderr has the flag --after for the rest.`,
		Example: `  delayq keys mail:welcome
  delayq jobs mail:welcome --state ready --key tenant-7`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usage("--limit %d: must be at least 1", limit)
			}
			from, err := idOf(after)
			if err != nil {
				return err
			}
			return a.listKeys(cmd, args[0], from, limit, whole)
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	set.StringVar(&after, "after", "", "begin after this `key`")
	set.IntVar(&limit, "limit", defaultLimit, "rows of the list")
	set.BoolVar(&whole, "all", false, "no limit")
	return cmd
}

// listKeys writes up to limit keys, or all of them, and what is needed to go on.
func (a *app) listKeys(cmd *cobra.Command, topic, after string, limit int, whole bool) error {
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	p, err := lists(a, view[*keyRecord]{schemaKey, schemaKeys, "keys", []column[*keyRecord]{
		{head: "KEY", cell: func(r *keyRecord) string { return keyText(&r.jobKey) }},
		{head: "READY", cell: func(r *keyRecord) string { return number(r.Waiting) }, right: true},
		{head: "WEIGHT", cell: func(r *keyRecord) string { return strconv.Itoa(r.Weight) }, right: true},
		{head: "FIRST", cell: func(r *keyRecord) string { return idText(r.exactFirst()) }},
	}, func(r *keyRecord) string { return keyText(&r.jobKey) }})
	if err != nil {
		return err
	}
	for {
		want := mostPage
		if !whole {
			want = min(mostPage, limit-p.n)
		}
		list, err := insp.Keys(cmd.Context(), topic, after, want)
		if err != nil {
			if flushed := a.flush(); flushed == nil && p.n > 0 {
				a.say("… stopped after %s: --after %s", count(p.n, "key"), idText(after))
			}
			return err
		}
		for _, k := range list {
			first := refOf(topic, k.First)
			if err := p.row(&keyRecord{topic, jobKeyOf(k.Key), k.Waiting, k.Weight, first.ID, first.IDBase64}); err != nil {
				return err
			}
			after = k.Key
		}
		if full := len(list) == want; full && (whole || p.n < limit) {
			continue
		} else if !full {
			after = ""
		}
		break
	}
	next := jobKeyOf(after)
	if err := p.end(struct {
		Next       string `json:"next,omitempty"`
		NextBase64 []byte `json:"next_base64,omitempty"`
	}{next.Key, next.KeyBase64}); err != nil {
		return err
	}
	switch {
	case after != "":
		a.say("… more: --after %s", idText(after))
	case p.n == 0 && a.tabular():
		a.say("no ready jobs with a key")
	}
	return a.flush()
}
