// An HTTP server over libevent's evhttp: one thread runs its loop and calls the handler; answers come from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace megalith {

struct ClientRequest {
  std::string method, path, authorization, body;  // path without the query
};

struct HttpAnswer {
  int status = 200;
  std::string body;
  std::string type = "application/json";
};

// The answer to one request: send(), or send_part() any number of times and then end_parts(). From any thread.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(HttpAnswer answer) = 0;
  virtual void send_part(std::string part) = 0;  // of a text/event-stream with status 200
  virtual void end_parts() = 0;
  virtual bool is_gone() const = 0;  // the client has closed the connection
};

class HttpServer {
 public:
  struct Limits {
    int64_t max_body_bytes = 16 << 20;
    int64_t max_header_bytes = 64 << 10;
  };
  using Handler = std::function<void(ClientRequest request, std::shared_ptr<HttpReply> reply)>;

  // Binds; UserError if that fails. port 0: a free one. Requests wait until start().
  //   handler    called on the server's thread, which it must not block
  //   on_signal  likewise, for SIGTERM and SIGINT
  HttpServer(const std::string& host, int port, const Limits& limits, Handler handler,
             std::function<void()> on_signal);
  // Waits up to a second for answers that are being sent.
  ~HttpServer();

  std::string address() const;  // http://127.0.0.1:8000
  void start();

 private:
  struct Loop;
  class Reply;
  std::shared_ptr<Loop> loop_;
};

}  // namespace megalith
