// Search in a site that is opened from a folder: browsers start no Worker from file://, so its script runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      const script = document.createElement("script");
      script.src = url;
      frame.hidden = true;
      frame.srcdoc = script.outerHTML;
      this.inside = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow)));
      this.inside.then((inside) => (inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))));
      document.body.append(frame);
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
