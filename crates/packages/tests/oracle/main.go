// Renders templates as KUDO does: each line of standard input is a JSON object with a template and
// its data, each line of standard output the result.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v2"
)

type request struct {
	Template string
	Data     map[string]interface{}
	Pipes    map[string]string
}

type response struct {
	Output string `json:"output"`
	Error  string `json:"error"`
}

func main() {
	functions := functions()
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var request request
		if err := json.Unmarshal(in.Bytes(), &request); err != nil {
			panic(err)
		}
		output, err := render(request, functions)
		response := response{Output: output}
		if err != nil {
			response = responseOf(err)
		}
		if err := encoder.Encode(response); err != nil {
			panic(err)
		}
	}
	if err := in.Err(); err != nil {
		panic(err)
	}
}

func responseOf(err error) response {
	return response{Error: err.Error()}
}

func render(request request, functions template.FuncMap) (string, error) {
	data := request.Data
	if request.Pipes != nil {
		data["Pipes"] = request.Pipes
	}
	t, err := template.New("gotpl").Option("missingkey=error").New("t").Funcs(functions).Parse(request.Template)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := t.ExecuteTemplate(&out, "t", data); err != nil {
		return "", err
	}
	if !utf8.Valid(out.Bytes()) {
		return "", fmt.Errorf("the output is not UTF-8")
	}
	return out.String(), nil
}

// functions returns what KUDO offers; what differs each time is pinned down.
func functions() template.FuncMap {
	functions := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "base", "dir", "clean", "ext", "isAbs"} {
		delete(functions, name)
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return string(text), err
	}
	functions["now"] = func() time.Time { return time.Unix(1700000000, 123456789).UTC() }
	functions["keys"] = func(maps ...map[string]interface{}) []string {
		all := []string{}
		for _, entries := range maps {
			all = append(all, sortedKeys(entries)...)
		}
		return all
	}
	functions["values"] = func(entries map[string]interface{}) []interface{} {
		all := []interface{}{}
		for _, key := range sortedKeys(entries) {
			all = append(all, entries[key])
		}
		return all
	}
	return functions
}

func sortedKeys(entries map[string]interface{}) []string {
	keys := make([]string, 0, len(entries))
	for key := range entries {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
