"""server.py FOLDER PORTFILE [CUT]: serves FOLDER on 127.0.0.1 with byte ranges; writes its port to PORTFILE.

With CUT, the first answer stops after that many bytes, as a broken connection does. Prints one line per request:
the first byte asked for. Ends with its parent, or after two minutes, so that no test can leave it behind.
"""
import http.server
import os
import re
import sys
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cut = None

    def do_GET(self):
        path = os.path.join(folder, os.path.basename(self.path))
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as f:
            data = f.read()
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(match.group(1)) if match else 0
        print(first, flush=True)
        if first >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first))
        self.send_header("Connection", "close")
        self.end_headers()
        body = data[first:]
        if Handler.cut is not None:
            body = body[:Handler.cut]
            Handler.cut = None
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args):
        pass


def end_with_parent(parent):
    for _ in range(1200):
        if os.getppid() != parent:
            break
        time.sleep(0.1)
    os._exit(1)


folder = sys.argv[1]
if len(sys.argv) > 3:
    Handler.cut = int(sys.argv[3])
threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[2] + ".new", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
