package cli

import (
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/worker"
	"github.com/delayq/delayq/handlers/webhook"
)

// payload returns the topic of a task, what it does, its payload, and the option for its key.
func (f *taskFlags) payload(cmd *cobra.Command, a *app) (topic, task string, payload []byte, key delayq.JobOption, err error) {
	given := cmd.Flags().Changed
	kind := ""
	for _, k := range taskKinds {
		switch {
		case !given(k):
		case kind != "":
			return "", "", nil, nil, usage("--%s and --%s: only one of them can be given", kind, k)
		default:
			kind = k
		}
	}
	for _, flag := range []string{"to", "cc", "bcc", "reply-to"} {
		if given(flag) && kind != "mail" {
			return "", "", nil, nil, usage("--%s is for --mail", flag)
		}
	}
	if topic = f.topic; topic == "" {
		topic = kind
	}
	if topic == "" {
		return "", "", nil, nil, usage("one of --sql, --command, --mail and --webhook is needed, or --topic")
	}
	if given("data") && given("data-file") {
		return "", "", nil, nil, usage("--data and --data-file: only one of them can be given")
	}
	data := []byte(f.data)
	if given("data-file") {
		if data, err = a.readFile(f.dataFile); err != nil {
			return "", "", nil, nil, err
		}
	}
	if given("key") {
		key = delayq.Key(f.key)
	}
	if kind == "" {
		return topic, topic, data, key, nil
	}
	what := *f.what[kind]
	content := json.RawMessage(data)
	switch {
	case len(data) == 0:
		content = nil
	case json.Valid(data):
	case kind == "command": // any text
		if content, err = marshal(string(data)); err != nil {
			return "", "", nil, nil, err
		}
	default:
		return "", "", nil, nil, usage("--data: the text is no JSON")
	}
	var request any
	switch kind {
	case "sql":
		request = struct {
			Statement string          `json:"statement"`
			Arguments json.RawMessage `json:"arguments,omitempty"`
		}{what, content}
	case "command":
		request = struct {
			Command string          `json:"command"`
			Input   json.RawMessage `json:"input,omitempty"`
		}{what, content}
	case "mail":
		if len(f.to)+len(f.cc)+len(f.bcc) == 0 {
			return "", "", nil, nil, usage("--mail needs an address: --to, --cc or --bcc")
		}
		request = struct {
			Template string          `json:"template"`
			To       []string        `json:"to,omitempty"`
			CC       []string        `json:"cc,omitempty"`
			BCC      []string        `json:"bcc,omitempty"`
			ReplyTo  string          `json:"reply_to,omitempty"`
			Data     json.RawMessage `json:"data,omitempty"`
		}{what, f.to, f.cc, f.bcc, f.replyTo, content}
	case "webhook":
		isURL := strings.Contains(what, "://")
		post := struct {
			Receiver string          `json:"receiver,omitempty"`
			URL      string          `json:"url,omitempty"`
			Body     json.RawMessage `json:"body,omitempty"`
		}{what, "", content}
		if isURL {
			post.Receiver, post.URL = "", what
		}
		request = post
		switch {
		case key != nil:
		case isURL:
			key = webhook.Key(what)
		default:
			key = delayq.Key(what)
		}
	}
	payload, err = marshal(request)
	task = kind + " " + what
	if kind == "webhook" && strings.Contains(what, "://") { // the rest of the URL may be a token
		task = kind + " " + worker.HostOf(what)
	}
	return topic, task, payload, key, err
}

// checkTask asks the file of a worker whether it serves a task.
func (a *app) checkTask(config, topic string, payload []byte) error {
	mistakes, err := worker.Serves(config, a.getenv, topic, payload)
	if len(mistakes) > 0 {
		for _, m := range mistakes {
			a.say("%s", m)
		}
		return usage("%s has %s", config, count(len(mistakes), "mistake"))
	}
	if err != nil {
		return usage("%s: %v", config, err)
	}
	return nil
}
