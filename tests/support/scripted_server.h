// An HTTP server on this machine whose answers a test writes byte by byte, so that they can be wrong in any way.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace megalith::test {

// One request's connection; it is closed when the answer's function returns.
class ScriptedAnswer {
 public:
  ScriptedAnswer(int fd, std::string head) : fd_(fd), head_(std::move(head)) {}

  // "GET /path HTTP/1.1" and the headers.
  const std::string& head() const { return head_; }
  int64_t first_byte() const {
    const size_t at = head_.find("Range: bytes=");
    return at == std::string::npos ? 0 : std::stoll(head_.substr(at + 13));
  }

  // False once the client has gone.
  bool send(std::string_view bytes) const {
    for (std::string_view left = bytes; !left.empty();) {
      const ssize_t count = ::send(fd_, left.data(), left.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      left.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  void send_status(int status, std::string_view headers = "", std::string_view body = "") const {
    send(fmt::format("HTTP/1.1 {} Words\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status, body.size(),
                     headers, body));
  }
  // Says nothing more until the client goes.
  void stay_silent() const {
    char byte = 0;
    while (::recv(fd_, &byte, 1, 0) > 0) continue;
  }
  // One byte every `pause` until the client goes.
  void drip(std::chrono::milliseconds pause) const {
    while (send("x")) std::this_thread::sleep_for(pause);
  }

 private:
  int fd_;
  std::string head_;
};

class ScriptedServer {
 public:
  // answer  called for each request, one at a time; num_before counts from 0
  using Script = std::function<void(const ScriptedAnswer&, int num_before)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd_, 16) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no socket on 127.0.0.1");
    }
    port_ = ::ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  // The clients are to be gone before.
  ~ScriptedServer() {
    ends_ = true;
    thread_.join();
    ::close(fd_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  int num_requests() const { return num_requests_; }

 private:
  void serve() {
    while (!ends_) {
      pollfd waiting{fd_, POLLIN, 0};
      if (::poll(&waiting, 1, 5) <= 0) continue;
      const int connection = ::accept(fd_, nullptr, nullptr);
      std::string head;
      char byte = 0;
      while (!head.ends_with("\r\n\r\n") && ::recv(connection, &byte, 1, 0) > 0) head += byte;
      if (head.ends_with("\r\n\r\n")) script_(ScriptedAnswer(connection, head), num_requests_++);
      ::close(connection);
    }
  }

  Script script_;
  int fd_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ends_{false};
  std::atomic<int> num_requests_{0};
  std::thread thread_;
};

}  // namespace megalith::test
