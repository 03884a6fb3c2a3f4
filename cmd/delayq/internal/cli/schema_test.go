package cli

import (
	"bytes"
	"encoding"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

const schemaFile = "schema.json"

// lists of records: their schema, the name of the list, a record, and what follows the list.
var listSchemas = []struct {
	schema, record, field string
	of, more              any
}{
	{schemaJobs, schemaJob, "jobs", jobRecord{}, struct {
		Total int64  `json:"total,omitempty"`
		Next  string `json:"next,omitempty"`
		At    stamp  `json:"at,omitzero"`
	}{}},
	{schemaTopics, schemaTopic, "topics", topicRecord{}, nil},
	{schemaStats, schemaStat, "stats", topicRecord{}, nil},
	{schemaFailures, schemaFailure, "failures", failureRecord{}, struct {
		Examined int   `json:"examined"`
		Total    int64 `json:"total"`
	}{}},
	{schemaActs, schemaActed, "jobs", actedRecord{}, nil},
	{schemaBulks, schemaBulk, "parts", bulkRecord{}, nil},
	{schemaMemories, schemaMemory, "topics", memoryRecord{}, nil},
	{schemaRemovals, schemaRemoved, "topics", removedRecord{}, nil},
	{schemaMoves, schemaMove, "jobs", moveRecord{}, nil},
	{schemaServers, schemaServer, "servers", serverRecord{}, nil},
	{schemaSchedules, schemaSchedule, "schedules", scheduleRecord{}, nil},
	{schemaScheduleActs, schemaScheduleAct, "schedules", scheduleActRecord{}, nil},
	{schemaTasks, schemaTask, "tasks", taskRecord{}, nil},
	{schemaRuns, schemaRun, "runs", runRecord{}, nil},
	{schemaSyncs, schemaSync, "steps", syncRecord{}, nil},
	{schemaDoctor, schemaFinding, "findings", findingRecord{}, struct {
		Jobs     int64 `json:"jobs"`
		Found    int   `json:"found"`
		Repaired int   `json:"repaired"`
	}{}},
	{schemaAudit, schemaAuditEntry, "acts", auditRecord{}, nil},
	{schemaUndelivered, schemaUndeliveredJob, "refusals", undeliveredRecord{}, nil},
	{schemaAsynqImport, schemaAsynqPart, "parts", asynqPart{}, asynqTotals{}},
	{schemaKeys, schemaKey, "keys", keyRecord{}, struct {
		Next       string `json:"next,omitempty"`
		NextBase64 []byte `json:"next_base64,omitempty"`
	}{}},
}

// objects are records without a list.
var objectSchemas = map[string]any{
	schemaEnqueued: enqueuedRecord{}, schemaCheck: checkRecord{}, schemaExplanation: explanationRecord{}, schemaImport: importRecord{},
	schemaExport: exportRecord{}, schemaVersion: versionRecord{}, schemaACL: aclRecord{}, schemaPriority: priorityRecord{},
	schemaTaskAdded: taskAddedRecord{}, schemaOutcome: outcomeRecord{}, schemaFlow: flowRecord{},
}

// describe returns the JSON schema of a Go type.
func describe(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[stamp]():
		return map[string]any{"type": "string", "format": "date-time", "pattern": `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`}
	case reflect.TypeFor[seconds]():
		return map[string]any{"type": "number"}
	case reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return describe(t.Elem())
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		describeFields(t, properties, &required)
		slices.Sort(required)
		return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": describe(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": describe(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	}
	panic("no schema for " + t.String())
}

func describeFields(t reflect.Type, properties map[string]any, required *[]string) {
	for field := range fieldsOf(t) {
		if field.Anonymous {
			inner := field.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			describeFields(inner, properties, required)
			continue
		}
		name, tags, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() {
			continue
		}
		properties[name] = describe(field.Type)
		if !strings.Contains(tags, "omit") {
			*required = append(*required, name)
		}
	}
}

func fieldsOf(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// withSchema adds the field that names the schema.
func withSchema(d map[string]any, schema string) map[string]any {
	properties := d["properties"].(map[string]any)
	properties["schema"] = map[string]any{"const": schema}
	required := append(d["required"].([]string), "schema")
	slices.Sort(required)
	d["required"] = slices.Compact(required)
	return d
}

func wholeSchema() map[string]any {
	defs := map[string]any{}
	for _, l := range listSchemas {
		defs[l.record] = withSchema(describe(reflect.TypeOf(l.of)), l.record)
		list := map[string]any{"type": "object", "properties": map[string]any{}, "required": []string{}, "additionalProperties": false}
		if l.more != nil {
			list = describe(reflect.TypeOf(l.more))
		}
		list["properties"].(map[string]any)[l.field] = map[string]any{"type": "array", "items": describe(reflect.TypeOf(l.of))}
		list["required"] = append(list["required"].([]string), l.field)
		defs[l.schema] = withSchema(list, l.schema)
	}
	for schema, record := range objectSchemas {
		defs[schema] = withSchema(describe(reflect.TypeOf(record)), schema)
	}
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Output of delayq -o json and -o jsonl: the field schema of an object names its entry in $defs",
		"$defs":   defs,
	}
}

// The schema file describes the records, and no others.
func TestSchemaFileIsTheRecords(t *testing.T) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(wholeSchema()))
	compare(t, schemaFile, out.String())
}

var compiled = sync.OnceValue(func() map[string]*jsonschema.Schema {
	file, err := os.Open(schemaFile)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	doc, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaFile, doc); err != nil {
		panic(err)
	}
	all := map[string]*jsonschema.Schema{}
	for name := range doc.(map[string]any)["$defs"].(map[string]any) {
		all[name] = c.MustCompile(schemaFile + "#/$defs/" + strings.ReplaceAll(name, "/", "~1"))
	}
	return all
})

// valid checks JSON on stdout against the schema file.
func (w *world) valid(args []string, r result) {
	w.Helper()
	var docs []string
	switch at := slices.Index(args, "-o"); {
	case len(args) > 0 && args[0] == "export" && r.out != "":
		docs = strings.Split(strings.TrimSpace(r.out), "\n")
	case at < 0 || r.out == "":
		return
	case args[at+1] == formatJSON:
		docs = []string{r.out}
	case args[at+1] == formatJSONL:
		docs = strings.Split(strings.TrimSpace(r.out), "\n")
	}
	for _, text := range docs {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		require.NoError(w, err, "%v: %s", args, text)
		name, _ := doc.(map[string]any)["schema"].(string)
		require.Contains(w, compiled(), name, "%v: %s", args, text)
		require.NoError(w, compiled()[name].Validate(doc), "%v: %s", args, text)
	}
}

// Times in JSON are in UTC with milliseconds, durations are seconds, and both are read back.
func TestRecordsAreReadBack(t *testing.T) {
	var s stamp
	require.NoError(t, s.UnmarshalText([]byte("2026-11-20T15:01:11.42+01:00")))
	text, err := s.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "2026-11-20T14:01:11.420Z", string(text))
	var _ encoding.TextUnmarshaler = &s

	var d seconds
	require.NoError(t, json.Unmarshal([]byte("0.3"), &d))
	text, err = json.Marshal(d)
	require.NoError(t, err)
	require.Equal(t, "0.3", string(text))
	require.Error(t, json.Unmarshal([]byte(`"3s"`), &d))
}
