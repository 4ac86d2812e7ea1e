#include "serve/http_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int kIdle_s = 60;  // closes a connection that neither sends nor receives
constexpr timeval kLookInterval{0, 200'000};  // for detecting closed connections
constexpr timeval kFlushTime{1, 0};

constexpr auto kAllMethods = EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                             EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH;

std::string_view method_name(evhttp_cmd_type method) {
  switch (method) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_PUT: return "PUT";
    default: return "another";
  }
}

// evhttp stops reading while a request is answered, so closed connections must be detected here.
bool is_closed(evhttp_request* request) {
  evhttp_connection* connection = evhttp_request_get_connection(request);
  if (connection == nullptr) return true;
  char byte;
  const int fd = static_cast<int>(bufferevent_getfd(evhttp_connection_get_bufferevent(connection)));
  const ssize_t count = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

struct HttpServer::Loop {
  Handler handler;
  std::function<void()> on_signal;
  std::string host;
  int port = 0;
  event_base* base = nullptr;
  evhttp* http = nullptr;
  evhttp_bound_socket* socket = nullptr;
  int wake_fd = -1;
  std::vector<event*> events;
  std::thread thread;
  std::vector<std::shared_ptr<Reply>> open;  // not answered yet
  int64_t num_flushing = 0;
  bool is_stopping = false;

  std::mutex mutex;
  std::vector<std::function<void()>> posted;

  ~Loop();
  void add_event(int fd, short what, event_callback_fn callback, const timeval* interval = nullptr);
  // Runs it on the loop's thread.
  void post(std::function<void()> call);
  void run_posted();
  void end_if_flushed() {
    if (is_stopping && num_flushing <= 0) event_base_loopbreak(base);
  }
};

class HttpServer::Reply : public HttpReply, public std::enable_shared_from_this<HttpServer::Reply> {
 public:
  Reply(std::shared_ptr<Loop> loop, evhttp_request* request) : loop_(std::move(loop)), request_(request) {}

  void send(HttpAnswer answer) override {
    on_loop([this, answer = std::move(answer)] {
      evkeyvalq* headers = evhttp_request_get_output_headers(request_);
      evhttp_add_header(headers, "Content-Type", answer.type.c_str());
      if (answer.status == 401) evhttp_add_header(headers, "WWW-Authenticate", "Bearer");
      if (answer.status == 503) evhttp_add_header(headers, "Retry-After", "1");
      with_buffer(answer.body, [&](evbuffer* buffer) {
        begin_flush();
        evhttp_send_reply(request_, answer.status, nullptr, buffer);
      });
      close();
    });
  }

  void send_part(std::string part) override {
    on_loop([this, part = std::move(part)] {
      if (evhttp_request_get_connection(request_) == nullptr) return;
      if (!std::exchange(has_begun_, true)) {
        evkeyvalq* headers = evhttp_request_get_output_headers(request_);
        evhttp_add_header(headers, "Content-Type", "text/event-stream");
        evhttp_add_header(headers, "Cache-Control", "no-cache");
        evhttp_send_reply_start(request_, 200, "OK");
      }
      with_buffer(part, [&](evbuffer* buffer) { evhttp_send_reply_chunk(request_, buffer); });
    });
  }

  void end_parts() override {
    on_loop([this] {
      begin_flush();
      evhttp_send_reply_end(request_);
      close();
    });
  }

  bool is_gone() const override { return is_gone_; }
  void look() {
    if (is_closed(request_)) is_gone_ = true;
  }

 private:
  void on_loop(std::function<void()> call) {
    loop_->post([self = shared_from_this(), call = std::move(call)] {
      if (self->request_ != nullptr) call();
    });
  }

  template <typename Send>
  static void with_buffer(const std::string& text, const Send& send) {
    evbuffer* buffer = evbuffer_new();
    evbuffer_add(buffer, text.data(), text.size());
    send(buffer);
    evbuffer_free(buffer);
  }

  void begin_flush() {
    if (is_gone_ || evhttp_request_get_connection(request_) == nullptr) return;
    ++loop_->num_flushing;
    evhttp_request_set_on_complete_cb(
        request_,
        [](evhttp_request*, void* loop) {
          --static_cast<Loop*>(loop)->num_flushing;
          static_cast<Loop*>(loop)->end_if_flushed();
        },
        loop_.get());
  }

  // evhttp frees the request once it is sent.
  void close() {
    request_ = nullptr;
    std::erase_if(loop_->open, [this](const auto& reply) { return reply.get() == this; });
  }

  std::shared_ptr<Loop> loop_;
  evhttp_request* request_;  // of the loop's thread; null once answered
  bool has_begun_ = false;
  std::atomic<bool> is_gone_ = false;
};

HttpServer::Loop::~Loop() {
  for (event* one : events) event_free(one);
  if (http != nullptr) evhttp_free(http);
  if (base != nullptr) event_base_free(base);
  if (wake_fd >= 0) ::close(wake_fd);
}

void HttpServer::Loop::add_event(int fd, short what, event_callback_fn callback, const timeval* interval) {
  events.push_back(event_new(base, fd, what, callback, this));
  event_add(events.back(), interval);
}

void HttpServer::Loop::post(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex);
    posted.push_back(std::move(call));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof(one));  // fails only if the loop is awake
                                                                                 // already
}

void HttpServer::Loop::run_posted() {
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(wake_fd, &count, sizeof(count));
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(mutex);
    calls.swap(posted);
  }
  for (const auto& call : calls) call();
}

HttpServer::HttpServer(const std::string& host, int port, const Limits& limits, Handler handler,
                       std::function<void()> on_signal)
    : loop_(std::make_shared<Loop>()) {
  loop_->handler = std::move(handler);
  loop_->on_signal = std::move(on_signal);
  loop_->host = host;
  loop_->base = event_base_new();
  loop_->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  MEGALITH_CHECK(loop_->base != nullptr && loop_->wake_fd >= 0, "no event loop: {}", std::strerror(errno));
  loop_->http = evhttp_new(loop_->base);
  evhttp_set_allowed_methods(loop_->http, kAllMethods);
  evhttp_set_max_body_size(loop_->http, limits.max_body_bytes);
  evhttp_set_max_headers_size(loop_->http, limits.max_header_bytes);
  evhttp_set_timeout(loop_->http, kIdle_s);
  event_set_log_callback([](int, const char*) {});  // what goes wrong here is told below
  errno = 0;
  loop_->socket = evhttp_bind_socket_with_handle(loop_->http, host.c_str(), narrow<uint16_t>(port));
  if (loop_->socket == nullptr) {
    throw UserError(fmt::format("cannot listen on {} port {}: {}", host, port,
                                errno == 0 ? "there is no such address" : std::strerror(errno)),
                    "give an address of this machine with --host and a free port with --port; port 0 picks one");
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(evhttp_bound_socket_get_fd(loop_->socket), reinterpret_cast<sockaddr*>(&bound), &size);
  loop_->port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  evhttp_set_gencb(
      loop_->http,
      [](evhttp_request* request, void* argument) {
        auto& loop = *static_cast<std::shared_ptr<Loop>*>(argument);
        ClientRequest asked;
        asked.method = method_name(evhttp_request_get_command(request));
        const evhttp_uri* uri = evhttp_request_get_evhttp_uri(request);
        const char* path = uri == nullptr ? nullptr : evhttp_uri_get_path(uri);
        asked.path = path == nullptr || *path == '\0' ? "/" : path;
        const char* key = evhttp_find_header(evhttp_request_get_input_headers(request), "Authorization");
        if (key != nullptr) asked.authorization = key;
        evbuffer* body = evhttp_request_get_input_buffer(request);
        asked.body.resize(evbuffer_get_length(body));
        evbuffer_remove(body, asked.body.data(), asked.body.size());
        auto reply = std::make_shared<Reply>(loop, request);
        loop->open.push_back(reply);
        loop->handler(std::move(asked), std::move(reply));
      },
      &loop_);
  loop_->add_event(loop_->wake_fd, EV_READ | EV_PERSIST,
                   [](int, short, void* loop) { static_cast<Loop*>(loop)->run_posted(); });
  loop_->add_event(
      -1, EV_PERSIST,
      [](int, short, void* loop) {
        for (const auto& reply : static_cast<Loop*>(loop)->open) reply->look();
      },
      &kLookInterval);
}

HttpServer::~HttpServer() {
  if (!loop_->thread.joinable()) return;
  loop_->post([loop = loop_.get()] {
    loop->is_stopping = true;
    evhttp_del_accept_socket(loop->http, loop->socket);
    event_base_loopexit(loop->base, &kFlushTime);
    loop->end_if_flushed();
  });
  loop_->thread.join();
  loop_->open.clear();  // they hold the loop
}

std::string HttpServer::address() const {
  const bool is_v6 = loop_->host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", is_v6 ? "[" + loop_->host + "]" : loop_->host, loop_->port);
}

void HttpServer::start() {
  for (const int number : {SIGTERM, SIGINT}) {
    loop_->add_event(number, EV_SIGNAL | EV_PERSIST,
                     [](int, short, void* loop) { static_cast<Loop*>(loop)->on_signal(); });
  }
  loop_->thread = std::thread([loop = loop_.get()] { event_base_dispatch(loop->base); });
}

}  // namespace megalith
