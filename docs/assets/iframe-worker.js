// A worker in a hidden frame, for pages that are opened as files. Browsers refuse real workers there,
// and the site's search needs one. This has no more than that search uses. The file's name contains
// "iframe-worker", so that Material's plugin `offline` does not load such a script from the network.
(function () {
  "use strict";
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      // Opening the document keeps a browser from replacing it later by an empty one.
      const inside = this.frame.contentDocument;
      inside.open();
      inside.write("<!doctype html><title>Search</title><body></body>");
      inside.close();
      this.inner = this.frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.waiting = []; // messages that were posted before the script had run
      const script = inside.createElement("script");
      script.src = new URL(address, document.baseURI).href;
      script.onload = () => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach((data) => this.postMessage(data));
      };
      script.onerror = () => this.dispatchEvent(new Event("error"));
      inside.body.appendChild(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = IFrameWorker; // by this name the search knows that it runs in a frame
  window.Worker = IFrameWorker;
})();
