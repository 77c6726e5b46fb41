// A service for a webhook rule of a PodTransitionRule, using only Go's standard library. It responds
// with a task to each request, and all Pods of the task pass two seconds later.
// Usage: go run webhook.go 127.0.0.1:9000
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

type request struct{ Resources []struct{ Name string } }

// start responds with a task, whose ID is the time at which it ends.
func start(w http.ResponseWriter, r *http.Request) {
	var req request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req); err != nil {
		http.Error(w, "invalid webhook request", http.StatusBadRequest)
		return
	}
	log.Printf("starting a task for %d Pods", len(req.Resources))
	ends := time.Now().Add(2 * time.Second).UnixNano()
	respond(w, map[string]any{"success": true, "poll": true, "taskId": fmt.Sprint(ends)})
}

// progress reports whether a task is finished.
func progress(w http.ResponseWriter, r *http.Request) {
	var ends int64
	if _, err := fmt.Sscan(r.URL.Query().Get("task-id"), &ends); err != nil {
		respond(w, map[string]any{"success": false, "stop": true, "message": "task not found"})
		return
	}
	respond(w, map[string]any{"success": true, "finished": time.Now().UnixNano() >= ends})
}

func respond(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(body)
}

func main() {
	http.HandleFunc("POST /", start)
	http.HandleFunc("GET /", progress)
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
