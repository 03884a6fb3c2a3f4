package gateway

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bodies are the types of Go and their schemas in openapi.json.
var bodies = map[string]any{
	"JobRequest": jobRequest{}, "PatchRequest": patchRequest{}, "TakeRequest": takeRequest{}, "SettleRequest": settleRequest{},
	"ExtendRequest": extendRequest{}, "InputsRequest": inputsRequest{}, "StepRequest": stepRequest{}, "FlowRequest": flowRequest{},
	"Backoff": backoff{}, "Debounce": debounce{}, "Stored": stored{}, "Item": itemAnswer{}, "Items": several{}, "Job": jobAnswer{}, "JobName": jobName{},
	"AttemptError": attemptError{}, "Progress": progress{}, "Cancelled": cancelAnswer{}, "Result": resultAnswer{}, "Taken": takeAnswer{},
	"TakenJob": takenJob{}, "Inputs": inputsAnswer{}, "Input": input{}, "Flow": flowAnswer{}, "FieldError": fieldError{}, "Problem": problem{},
}

// A schema is one of openapi.json.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	More       *json.RawMessage  `json:"additionalProperties"`
	Items      *schema           `json:"items"`
	OneOf      []schema          `json:"oneOf"`
	Enum       []string          `json:"enum"`
	Encoding   string            `json:"contentEncoding"`
	About      string            `json:"description"`
}

type content map[string]struct{ Schema schema }

type operation struct {
	Security    *[]any `json:"security"`
	Description string
	Parameters  []struct{ Ref, Name, In string }
	RequestBody *struct{ Content content }
	Responses   map[string]struct {
		Ref     string `json:"$ref"`
		Content content
	}
}

type openDocument struct {
	OpenAPI    string
	Paths      map[string]map[string]json.RawMessage
	Components struct {
		Schemas   map[string]schema
		Responses map[string]struct{ Description string }
	}
}

func readDocument(t *testing.T) (d openDocument) {
	require.NoError(t, json.Unmarshal([]byte(openAPI), &d))
	require.Equal(t, "3.1.0", d.OpenAPI)
	return d
}

// kindOf returns the JSON type of a type of Go as a schema has it.
func kindOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return "any"
	case reflect.TypeFor[[]byte]():
		return "base64"
	case reflect.TypeFor[moment]():
		return "time"
	case reflect.TypeFor[span]():
		return "span"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Slice:
		return "array"
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	}
	return "string"
}

// kind returns the same of a schema.
func (d *openDocument) kind(s schema) string {
	switch name := strings.TrimPrefix(s.Ref, "#/components/schemas/"); {
	case name == "Time":
		return "time"
	case name == "Duration" || s.Type == "number":
		return "span"
	case s.Ref != "":
		return "object"
	case s.Type == "string" && s.Encoding == "base64":
		return "base64"
	case s.Type == "" && s.OneOf == nil:
		return "any"
	}
	return s.Type
}

// The schemas have the fields of the types of Go, and no others. What is always there is required.
func TestSchemasAreTheTypes(t *testing.T) {
	d := readDocument(t)
	names := slices.Sorted(maps.Keys(bodies))
	require.Equal(t, slices.Sorted(slices.Values(append(names, "Duration", "Time"))), slices.Sorted(maps.Keys(d.Components.Schemas)))
	for name, of := range bodies {
		s := d.Components.Schemas[name]
		require.NotNil(t, s.More, name)
		require.Equal(t, "false", string(*s.More), name)
		fields := map[string]reflect.Type{}
		always := []string{}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
			field, tags, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous || field == "" {
				continue
			}
			fields[field] = f.Type
			if !strings.Contains(tags, "omit") {
				always = append(always, field)
			}
		}
		require.Equal(t, slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(s.Properties)), name)
		for field, goType := range fields {
			want, got := kindOf(goType), d.kind(s.Properties[field])
			if want == "time" && got == "string" { // of an answer
				got = "time"
			}
			require.Equal(t, want, got, "%s.%s", name, field)
			if s.Properties[field].Ref == "" {
				require.NotEmpty(t, s.Properties[field].About, "%s.%s", name, field)
			}
		}
		if !strings.HasSuffix(name, "Request") || name == "SettleRequest" {
			for _, field := range always {
				require.Contains(t, s.Required, field, name)
			}
		}
	}
	var types []string
	for _, k := range kinds {
		types = append(types, problemPrefix+k.name)
	}
	require.Equal(t, types, d.Components.Schemas["Problem"].Properties["type"].Enum)
	require.ElementsMatch(t, slices.Collect(maps.Keys(wants)), d.Components.Schemas["SettleRequest"].Properties["outcome"].Enum)
}

// The paths have the routes of the handler, with their statuses, parameters and rights.
func TestPathsAreTheRoutes(t *testing.T) {
	d := readDocument(t)
	listed := map[string]operation{}
	for path, methods := range d.Paths {
		for method, raw := range methods {
			if method == "parameters" {
				require.Equal(t, strings.Count(path, "{"), strings.Count(string(raw), "$ref"), path)
				continue
			}
			var o operation
			require.NoError(t, json.Unmarshal(raw, &o))
			listed[strings.ToUpper(method)+" "+path] = o
		}
	}
	for _, r := range routes {
		name := r.method + " " + r.path
		o, is := listed[name]
		require.True(t, is, name)
		delete(listed, name)
		statuses := slices.Clone(r.statuses)
		if !r.public {
			statuses = append(statuses, everywhere...)
		}
		slices.Sort(statuses)
		var shown []int
		for status, a := range o.Responses {
			n, err := strconv.Atoi(status)
			require.NoError(t, err)
			shown = append(shown, n)
			if n >= 400 {
				require.Equal(t, "#/components/responses/"+status, a.Ref, name)
			} else if n != 204 {
				require.NotEmpty(t, a.Content, name)
			}
		}
		slices.Sort(shown)
		require.Equal(t, statuses, shown, name)
		require.Equal(t, r.public, o.Security != nil, name)
		var query []string
		for _, p := range o.Parameters {
			if p.In == "query" {
				query = append(query, p.Name)
			}
		}
		require.ElementsMatch(t, r.query, query, name)
		for _, right := range r.rights {
			require.Contains(t, o.Description, string(right), name)
		}
		require.Equal(t, slices.Contains(r.statuses, 413), o.RequestBody != nil, name)
	}
	require.Empty(t, listed, "no route is there")
	for _, k := range kinds {
		require.Regexp(t, `\b`+regexp.QuoteMeta(k.name)+`\b`, d.Components.Responses[strconv.Itoa(k.status)].Description)
	}
	for _, ref := range regexp.MustCompile(`"\$ref": "#/components/(\w+)/(\w+)"`).FindAllStringSubmatch(openAPI, -1) {
		require.Contains(t, openAPI, `"`+ref[2]+`": {`, ref[0])
	}
}
