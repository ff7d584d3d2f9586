// Pages that are opened from a folder may not start workers, and the search is one. There, a hidden frame of the page
// runs the worker's script instead. Messages arrive later and as copies, as those of a worker do.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "Search"
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) =>
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data: structuredClone(data) })))
      const script = inside.document.createElement("script")
      script.src = new URL(address, location.href).href
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = (event) => reject(this.onerror?.(event))
      })
      inside.document.body.append(script)
    }

    postMessage(data) {
      const copy = structuredClone(data)
      const send = () => this.frame.contentWindow?.onmessage?.(new MessageEvent("message", { data: copy }))
      this.ready.then(() => setTimeout(send), () => {})
    }

    terminate() {
      this.frame.remove()
    }
  }
}
