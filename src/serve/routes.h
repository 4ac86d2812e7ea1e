// The server's paths and their handlers.
#pragma once

#include <string>

#include "serve/http_server.h"
#include "serve/scheduler.h"
#include "serve/server_metrics.h"
#include "serve/text_request.h"

namespace megalith {

// All arguments must outlive it. api_key: required of clients; empty: none.
HttpServer::Handler make_handler(const ServedModel& model, Scheduler& scheduler, ServerMetrics& metrics,
                                 std::string api_key);

}  // namespace megalith
