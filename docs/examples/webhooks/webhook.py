# A service for a webhook rule of a PodTransitionRule, using only Python's standard library. It responds
# at once: Pods whose parameter `tier` is `critical` pass only while a file named `open` is in the
# current directory, all others pass. Usage: python3 webhook.py 127.0.0.1:9000
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def decide(request):
    """Returns the response body: which of these Pods pass."""
    is_open = os.path.exists("open")
    passing, blocked = [], []
    for pod in request["resources"]:
        critical = pod.get("parameters", {}).get("tier") == "critical"
        (blocked if critical and not is_open else passing).append(pod["name"])
    if not blocked:
        return {"success": True}
    message = "critical Pods wait for the file `open`"
    return {"success": False, "message": message, "finishedNames": passing}


class Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_POST(self):
        try:
            request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            body = json.dumps(decide(request)).encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            self.send_error(400, "invalid webhook request")
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


host, port = sys.argv[1].rsplit(":", 1)
ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
