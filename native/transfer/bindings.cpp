// Python's view of the transfer core. No logic lives here.
//
// Calls that can wait for the native thread release the interpreter lock; the others are short.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "clock.h"
#include "engine.h"
#include "eventfd.h"

namespace nb = nanobind;
using namespace relevo;

namespace {

void raise_if(const Status& status) {
  if (status.ok()) return;
  nb::object type = nb::module_::import_("relevo.errors").attr("TransferError");
  nb::object error = type(status.provider, status.operation, status.code, status.detail);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

std::unique_ptr<MemoryFile> make_memory(const std::string& name, size_t size) {
  Status status;
  auto file = MemoryFile::create(name, size, &status);
  raise_if(status);
  return file;
}

std::unique_ptr<TransferEngine> make_engine(const std::string& driver_name, const std::string& host,
                                            const Faults* faults) {
  std::unique_ptr<Driver> driver;
  if (driver_name == "local") {
    driver = make_local_driver();
  } else {
#ifdef RELEVO_LIBFABRIC
    driver = make_libfabric_driver(driver_name, host);
#endif
  }
  if (!driver) {
    raise_if(Status::failure(driver_name, "open", 0,
                             "this build has no libfabric; install its headers and build again, "
                             "or use the local transport"));
  }
  if (faults) driver = make_faulty_driver(std::move(driver), *faults);
  auto engine = std::make_unique<TransferEngine>(
      std::move(driver), make_memory("relevo-control", sizeof(CounterMemory)));
  raise_if(engine->open());
  return engine;
}

nb::bytes to_bytes(const std::vector<std::byte>& raw) { return nb::bytes(raw.data(), raw.size()); }

std::vector<std::byte> from_bytes(const nb::bytes& value) {
  auto* data = reinterpret_cast<const std::byte*>(value.c_str());
  return {data, data + value.size()};
}

nb::dict statistics(TransferEngine& engine) {
  const Statistics& s = engine.statistics();
  const CounterMemory& memory = engine.counters().memory();
  nb::dict out;
  out["writes"] = s.writes.load();
  out["parts"] = s.parts.load();
  out["bytes"] = s.bytes.load();
  out["retries"] = s.retries.load();
  out["refused_pushes"] = s.refused_pushes.load();
  out["stale_immediates"] = memory.stale.load();
  out["overshoots"] = memory.overshot.load();
  return out;
}

nb::list errors(TransferEngine& engine) {
  nb::list out;
  for (const ErrorCount& error : engine.statistics().errors()) {
    out.append(nb::make_tuple(error.operation, error.code, error.count));
  }
  return out;
}

}  // namespace

NB_MODULE(_transfer, m) {
  // Tensors over a MemoryFile live until the interpreter ends, which is no leak.
  nb::set_leak_warnings(false);
  m.attr("SLOTS") = kSlots;
  m.attr("GENERATIONS") = kGenerations;
  m.attr("MAX_PARTS") = kMaxParts;
#ifdef RELEVO_LIBFABRIC
  m.def("libfabric_version", &libfabric_version);
  m.def("libfabric_providers", &libfabric_providers);
#else
  m.def("libfabric_version", [] { return std::string(); });
  m.def("libfabric_providers", [] { return std::vector<std::string>(); });
#endif
  m.def("monotonic_ns", &monotonic_ns);

  nb::class_<MemoryFile>(m, "MemoryFile")
      .def(nb::new_(&make_memory), nb::arg("name"), nb::arg("size"))
      .def_prop_ro("size", &MemoryFile::size)
      .def(
          "map_over",
          [](MemoryFile& self, size_t offset, uintptr_t address, size_t length) {
            raise_if(self.map_over(offset, reinterpret_cast<std::byte*>(address), length));
          },
          nb::arg("offset"), nb::arg("address"), nb::arg("length"))
      .def("array", [](nb::object self) {
        auto& file = nb::cast<MemoryFile&>(self);
        size_t shape[1] = {file.size()};
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(file.data(), 1, shape, self);
      });

  nb::class_<PagePair>(m, "PagePair")
      .def(nb::init<uint32_t, uint32_t>(), nb::arg("source"), nb::arg("destination"))
      .def_ro("source", &PagePair::source)
      .def_ro("destination", &PagePair::destination);

  nb::class_<Copy>(m, "Copy").def(nb::init<uint64_t, uint64_t, uint64_t>(), nb::arg("source"),
                                  nb::arg("destination"), nb::arg("length"));

  nb::class_<LayerMap>(m, "LayerMap")
      .def(
          nb::init<RegionId, RegionId, uint64_t, uint64_t, uint64_t, uint64_t, std::vector<Copy>>(),
          nb::arg("source_region"), nb::arg("destination_region"), nb::arg("source_base"),
          nb::arg("source_stride"), nb::arg("destination_base"), nb::arg("destination_stride"),
          nb::arg("copies"));

  nb::class_<Push>(m, "Push").def(
      "__init__",
      [](Push* self, HandoffId handoff, LinkId link, uint32_t slot, uint32_t generation,
         std::vector<PagePair> ready, std::vector<PagePair> layered, bool last) {
        new (self)
            Push{handoff, link, slot, generation, std::move(ready), std::move(layered), last};
      },
      nb::arg("handoff"), nb::arg("link"), nb::arg("slot"), nb::arg("generation"), nb::arg("ready"),
      nb::arg("layered"), nb::arg("last"));

  nb::class_<Faults>(m, "Faults")
      .def(nb::init<uint64_t, uint64_t, uint64_t, double, double, double, double>(),
           nb::arg("seed"), nb::arg("delay_us"), nb::arg("bytes_per_s"), nb::arg("error"),
           nb::arg("stall"), nb::arg("cut"), nb::arg("corrupt"));

  nb::class_<CounterEvent>(m, "CounterEvent")
      .def_ro("slot", &CounterEvent::slot)
      .def_ro("generation", &CounterEvent::generation)
      .def_ro("reached_ns", &CounterEvent::reached_ns)
      .def_ro("overshot", &CounterEvent::overshot);

  nb::class_<TransferEvent> event(m, "TransferEvent");
  nb::enum_<TransferEvent::Kind>(event, "Kind")
      .value("LINK_UP", TransferEvent::Kind::kLinkUp)
      .value("LINK_DOWN", TransferEvent::Kind::kLinkDown)
      .value("LINK_CLOSED", TransferEvent::Kind::kLinkClosed)
      .value("PUSHED", TransferEvent::Kind::kPushed)
      .value("DRAINED", TransferEvent::Kind::kDrained)
      .value("FAILED", TransferEvent::Kind::kFailed);
  event.def_ro("kind", &TransferEvent::kind)
      .def_ro("link", &TransferEvent::link)
      .def_ro("handoff", &TransferEvent::handoff)
      .def_ro("step", &TransferEvent::step)
      .def_ro("at_ns", &TransferEvent::at_ns)
      .def_ro("writes", &TransferEvent::writes)
      .def_ro("parts", &TransferEvent::parts)
      .def_ro("bytes", &TransferEvent::bytes)
      .def_ro("last", &TransferEvent::last)
      .def_prop_ro("computed_ns",
                   [](const TransferEvent& self) {
                     std::vector<uint64_t> times;
                     for (const LayerPost& post : self.layers) times.push_back(post.computed_ns);
                     return times;
                   })
      .def_prop_ro("posted_ns",
                   [](const TransferEvent& self) {
                     std::vector<uint64_t> times;
                     for (const LayerPost& post : self.layers) times.push_back(post.posted_ns);
                     return times;
                   })
      .def_prop_ro("error", [](const TransferEvent& self) {
        const Status& s = self.status;
        return s.ok() ? std::string()
                      : s.provider + " " + s.operation + ": " + s.detail + " (" +
                            std::to_string(s.code) + ")";
      });

  nb::class_<TransferEngine>(m, "NativeEngine")
      .def(nb::new_(&make_engine), nb::arg("driver"), nb::arg("host"), nb::arg("faults").none())
      .def(
          "register_region",
          [](TransferEngine& self, RegionId id, MemoryFile& file) {
            raise_if(self.register_region({id, file.data(), file.size(), file.fd()}));
          },
          nb::arg("id"), nb::arg("file"), nb::keep_alive<1, 3>())
      .def("address", [](TransferEngine& self) { return to_bytes(self.address()); })
      .def("start", &TransferEngine::start)
      .def("stop", &TransferEngine::stop, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("event_fd", &TransferEngine::event_fd)
      .def_prop_ro("counter_fd", &TransferEngine::counter_fd)
      .def("arm", [](TransferEngine& self, uint32_t slot, uint32_t generation,
                     uint32_t expected) { return self.counters().arm(slot, generation, expected); })
      .def("disarm", [](TransferEngine& self, uint32_t slot) { self.counters().disarm(slot); })
      .def("counted",
           [](TransferEngine& self, uint32_t slot) { return self.counters().counted(slot); })
      .def("poll_counters",
           [](TransferEngine& self) {
             clear_eventfd(self.counter_fd());
             return self.counters().poll();
           })
      .def("expect", &TransferEngine::expect)
      .def(
          "connect",
          [](TransferEngine& self, LinkId link, const nb::bytes& address,
             std::vector<LayerMap> layers, uint64_t deadline_ns) {
            self.connect(link, from_bytes(address), std::move(layers), deadline_ns);
          },
          nb::arg("link"), nb::arg("address"), nb::arg("layers"), nb::arg("deadline_ns"))
      .def("close_link", &TransferEngine::close_link)
      .def("open_handoff", &TransferEngine::open_handoff)
      .def("withdraw", &TransferEngine::withdraw)
      .def("open_step", &TransferEngine::open_step, nb::arg("pushes"))
      .def("add_pushes", &TransferEngine::add_pushes, nb::arg("pushes"))
      .def("bump", &TransferEngine::bump)
      .def("end_step", &TransferEngine::end_step, nb::arg("commit"))
      .def("poll_events", &TransferEngine::poll_events)
      .def("statistics", &statistics)
      .def_prop_ro("in_flight",
                   [](TransferEngine& engine) { return engine.statistics().in_flight.load(); })
      .def("errors", &errors);
}
